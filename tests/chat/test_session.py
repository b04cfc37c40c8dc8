"""The one owner of a conversation, with a scripted engine: no front end is needed to hold one."""

import asyncio

import msgspec
import pytest

from edgechat.base.errors import DoesNotFit, EngineClosed, ModelNotFound, StoreUnwritable
from edgechat.chat.generation_options import CommandLineOptions, resolve_options
from edgechat.chat.model_choice import choose_model, remember, remembered
from edgechat.chat.records import ChatSettings
from edgechat.chat.session import ChatSession, SessionServices
from edgechat.chat.storage.store import Store
from edgechat.engine.types import CachePolicy, Finished
from edgechat.planner.plan import LoadPlan
from edgechat.settings import SamplingDefaults, Settings
from tests.fakes import MODEL, FakeEngine

GONE = ("gone", "lost.gguf")


class Machine:
    """The layers below a session, and what they were asked for."""

    def __init__(self, path):
        self.path = path
        self.settings = Settings()
        self.engines = []
        self.policies = []
        self.replans = []
        self.leaving = []
        """The loads that are about to end, as each plan was told."""
        self.notes = []
        self.load_seconds = 0.0

    def prepare(self, model, *, leaving=()):
        self.leaving.append([one.model_name for one in leaving])
        if model in GONE:
            raise ModelNotFound(f"There is no {model}.")
        if model == "huge":
            raise DoesNotFit("It is too large.")
        return LoadPlan(model_path=model, model_name=model, context=4096, threads=1)

    def engine(self, plan, *, cache_policy, replan, **_):
        made = FakeEngine(load_seconds=self.load_seconds)
        made.plan = plan
        self.engines.append(made)
        self.policies.append(cache_policy)
        self.replans.append(replan)
        return made

    def session(self, model=None, **options):
        services = SessionServices(lambda: self.path, self.prepare, self.engine, lambda: self.settings)
        session = ChatSession(services, model, **options)
        session.on_note = self.notes.append
        return session


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "chats.db")


@pytest.fixture
def open_session(machine, running):
    def make(model=None, **options):
        return running(machine.session(model, **options))

    return make


async def answer(session, text):
    conversation = await session.begin()
    await conversation.ask(text)
    events = [event async for event in session.answer(conversation)]
    assert isinstance(events[-1], Finished)
    return conversation.turns[-1].content


# Which model.


@pytest.mark.parametrize(
    ("named", "configured", "last", "chosen", "missing"),
    [
        (None, None, None, "guide", None),
        (None, None, "mine", "mine", None),
        (None, "theirs", "mine", "theirs", None),
        ("named", "theirs", "mine", "named", None),
        (None, None, "gone", "guide", "gone"),
        (None, "gone", "mine", "guide", "gone"),
    ],
)
async def test_which_model_is_chosen(machine, named, configured, last, chosen, missing):
    async def last_used():
        return last

    choice = await choose_model(named, configured, last_used, machine.prepare)
    assert (choice.model, choice.found.model_name, choice.missing) == (chosen, chosen, missing)
    assert choice.is_first == (named is configured is last is None)
    assert (choice.note is None) == (missing is None)


async def test_a_named_model_that_is_gone_is_an_error(open_session):
    with pytest.raises(ModelNotFound):
        await open_session("gone").engine()


async def test_a_configured_model_that_is_gone_is_told_of_once(machine, open_session):
    machine.settings = Settings(model="gone")
    session = open_session()
    assert await answer(session, "Hi") == "Hello there."
    assert await answer(session, "Again") == "Hello there."
    assert machine.notes == ["gone was not found; guide is used instead."]
    assert session.model == "guide"


async def test_the_model_used_last_answers_next_time(machine, open_session):
    first = open_session("mine")
    await first.engine()
    await first.remember_model()
    await first.close()
    session = open_session()
    await session.engine()
    assert (session.model, session.is_first_run) == ("mine", False)


async def test_another_model_that_does_not_fit_leaves_the_present_one(open_session):
    session = open_session("mine")
    await answer(session, "Hi")
    with pytest.raises(DoesNotFit):
        await session.switch_model("huge")
    assert session.model == "mine"
    assert await answer(session, "Still there?") == "Hello there."


async def test_another_model_is_planned_for_the_memory_of_the_present_one(machine, open_session):
    session = open_session("mine")
    await session.engine()
    await session.switch_model("second")  # nothing was loaded, so nothing becomes free
    await answer(session, "Hi")
    await session.switch_model("third")
    assert machine.leaving == [[], [], ["second"]]
    assert [engine.closed for engine in machine.engines] == [True, True, False]


async def test_a_model_is_planned_anew_for_more_memory(machine, open_session):
    session = open_session("mine")
    await session.engine()
    await session.switch_model("other")
    assert [replan().model_name for replan in machine.replans] == ["mine", "other"]
    assert machine.leaving[-2:] == [[], []]


async def test_switching_while_a_model_loads_ends_the_load_and_is_no_crash(machine, open_session):
    machine.load_seconds = 60.0
    session = open_session("mine")
    loading = asyncio.create_task((await session.engine()).start())
    await asyncio.sleep(0.05)
    machine.load_seconds = 0.0
    await session.switch_model("other")
    with pytest.raises(EngineClosed):
        await loading
    assert await answer(session, "Hi") == "Hello there."
    assert (session.model, len(machine.engines)) == ("other", 2)


async def test_no_engine_is_made_once_it_is_closed(machine):
    session = machine.session("mine")
    await session.store()
    await session.close()
    with pytest.raises(EngineClosed):
        await session.engine()
    assert machine.engines == []


# What is kept.


async def test_what_is_computed_is_kept_on_disk_where_the_text_is(machine, open_session, running):
    session = open_session()
    await answer(session, "Hi")
    assert machine.policies == [CachePolicy()]
    await session.close()
    assert machine.engines[0].left == [None]
    store = running(await Store.open(machine.path))
    assert len(await store.chats()) == 1


@pytest.mark.parametrize("unwritable", [True, False])
async def test_neither_text_nor_states_are_kept_without_a_store(
    machine, open_session, unwritable, monkeypatch
):
    async def refuse(_):
        raise StoreUnwritable("Nothing can be written here.")

    if unwritable:
        monkeypatch.setattr(Store, "open", refuse)
    session = open_session(keep=unwritable)
    await answer(session, "Hi")
    await answer(session, "Again")
    assert machine.policies == [CachePolicy(disk_bytes=0)]
    told = "Nothing can be written here. This conversation will be lost when edgechat closes."
    assert machine.notes == ([told] if unwritable else [])
    await session.close()
    assert machine.engines[0].left == []
    assert not machine.path.exists()


async def test_a_stored_conversation_is_not_continued_without_its_store(machine, open_session, monkeypatch):
    async def refuse(_):
        raise StoreUnwritable("Nothing can be written here.")

    monkeypatch.setattr(Store, "open", refuse)
    with pytest.raises(StoreUnwritable):
        await open_session(needs_store=True).store()
    assert machine.notes == []


async def test_nothing_is_computed_ahead_of_a_question_that_will_not_come(machine, open_session):
    await open_session(prewarm=False).engine()
    assert machine.policies == [CachePolicy(settle=False)]


async def test_an_in_memory_store_remembers_no_model(machine, running):
    store = running(await Store.open(machine.path))
    await remember(store, "mine")
    session = machine.session("other", keep=False)
    await session.engine()
    await session.remember_model()
    await session.close()
    assert await remembered(store) == "mine"


# How replies are generated.


def test_options_come_from_the_command_line_the_chat_the_settings_and_the_makers():
    plan = LoadPlan(
        model_path="",
        model_name="",
        context=4096,
        threads=1,
        sampling=SamplingDefaults(temperature=0.1, top_k=1, top_p=0.1),
        answering_sampling=SamplingDefaults(temperature=0.2, top_k=2, top_p=0.2),
    )
    given = CommandLineOptions(sampling=SamplingDefaults(temperature=0.5), seed=7, stop=("x",), max_tokens=9)
    chat = ChatSettings(sampling=SamplingDefaults(temperature=0.4, top_k=4), think=False)
    settings = Settings(think=True, overflow="error")
    model = msgspec.structs.replace(MODEL, can_switch_thinking=True)
    options = resolve_options(given, chat, settings, plan, model)
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 4, 0.2, 7)
    assert (options.think, options.overflow, options.stop, options.max_tokens) == (False, "error", ("x",), 9)
    wins = CommandLineOptions(think=True, overflow="window")
    options = resolve_options(wins, chat, settings, plan, model)
    assert (options.think, options.overflow) == (True, "window")


def test_a_setting_for_thinking_is_for_models_that_can_switch_it():
    settings, nothing = Settings(think=True), CommandLineOptions()
    can = msgspec.structs.replace(MODEL, can_switch_thinking=True)
    assert resolve_options(nothing, ChatSettings(), settings, None, MODEL).think is None
    assert resolve_options(nothing, ChatSettings(), settings, None, can).think is True
    assert resolve_options(nothing, ChatSettings(think=False), settings, None, MODEL).think is False
