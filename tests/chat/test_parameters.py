"""Commands that change how replies are generated, on a real session and conversation."""

import pytest

from edgechat.base.errors import DocumentError, SettingsError, SwitchUnknown
from edgechat.chat.generation_options import CommandLineOptions
from edgechat.chat.parameters import add_documents, adjust, is_folder_of_documents, number
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Preset, SamplingDefaults, Settings
from tests.fakes import FakeEngine

GIVEN = CommandLineOptions(sampling=SamplingDefaults(temperature=0.9, top_k=3), think=True)
POET = Preset(system="You write haiku.", think=False, sampling=SamplingDefaults(temperature=1.5))


@pytest.fixture
async def session(path, running):
    """A session of `edgechat run --temperature 0.9 --top-k 3 --think`."""
    services = SessionServices(
        lambda: path,
        lambda model, *, leaving=(): LoadPlan(model_path=model, model_name=model, context=4096, threads=1),
        lambda plan, **_: FakeEngine(),
        lambda: Settings(presets={"poet": POET}),
    )
    session = running(ChatSession(services, front="run", options=GIVEN))
    await session.engine()
    return session


@pytest.fixture
async def conversation(session):
    return await session.begin()


async def test_what_is_typed_later_counts_more_than_the_command_line(session, conversation):
    options = session.generation_options(conversation.settings)
    assert (options.sampling.temperature, options.sampling.top_k, options.think) == (0.9, 3, True)
    assert await adjust(session, conversation, "set", "temperature 0,3") == (
        "temperature is 0,3 in this conversation."
    )
    await adjust(session, conversation, "think", "OFF")
    options = session.generation_options(conversation.settings)
    assert (options.sampling.temperature, options.sampling.top_k, options.think) == (0.3, 3, False)
    await adjust(session, conversation, "set", "temperature default")
    assert session.generation_options(conversation.settings).sampling.temperature == 0.8


async def test_a_preset_is_applied(session, conversation):
    await adjust(session, conversation, "preset", "poet")
    options = session.generation_options(conversation.settings)
    assert (options.sampling.temperature, options.sampling.top_k, options.think) == (1.5, 3, False)
    assert conversation.system == "You write haiku."
    await adjust(session, conversation, "system", "")
    assert conversation.system is None


async def test_the_thinking_of_a_model_without_the_switch_stays(session, conversation):
    await (await session.engine()).start()
    with pytest.raises(SwitchUnknown):
        await adjust(session, conversation, "think", "on")
    await adjust(session, conversation, "think", "auto")
    assert conversation.settings.think is None


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ("set", "heat 1"),
        ("set", "temperature warm"),
        ("set", "temperature 9"),
        ("think", "maybe"),
        ("preset", "x"),
    ],
)
async def test_what_makes_no_sense_changes_nothing(session, conversation, command, argument):
    before = session.generation_options(conversation.settings)
    with pytest.raises(SettingsError):
        await adjust(session, conversation, command, argument)
    assert session.generation_options(conversation.settings) == before


def test_a_number_may_have_a_comma():
    assert (number(" 0,5 "), number("7")) == (0.5, 7)
    with pytest.raises(SettingsError):
        number("x")


async def test_documents_are_added_and_switched_on_and_off(session, conversation, tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "one.md").write_text("# One\n\nText.\n")
    assert "Available" not in await adjust(session, conversation, "docs", "")
    assert is_folder_of_documents(str(folder))
    seen = []
    told = await add_documents(session, conversation, str(folder), lambda one: seen.append(one.name))
    assert told == "notes is switched on in this conversation: 1 file."
    assert "notes/one.md" in seen
    assert session.chosen_documents(conversation.settings) == ("notes",)
    assert (await adjust(session, conversation, "docs", "notes")).endswith("conversation: none.")
    assert (await adjust(session, conversation, "docs", "notes")).endswith("conversation: notes.")
    assert not is_folder_of_documents("notes")
    assert "Available: notes. Use off for none." in await adjust(session, conversation, "docs", "")
    await adjust(session, conversation, "docs", "off")
    assert conversation.settings.documents == ()
    with pytest.raises(DocumentError, match="no document collection named 'other'"):
        await adjust(session, conversation, "docs", "other")
