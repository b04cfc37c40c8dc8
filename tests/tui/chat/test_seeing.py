"""A model that cannot see images says so before a question with one is sent, and another one is offered."""

import msgspec
import pytest

from edgechat.base.errors import EdgechatError
from edgechat.planner.companions import ProjectorPlan
from edgechat.planner.ranking.ranking import Verdict
from edgechat.tui.chat.screen import ChatScreen
from tests.base.images.files import encoded, quadrants
from tests.fakes import MODEL, FakeEngine
from tests.tui.driving import plan
from tests.tui.libraries import GIB, Fake, entry, option, row

pytestmark = pytest.mark.slow

SEEING = entry("eyes-4b", vision=True)
BLIND = entry("blind-8b")


@pytest.fixture(autouse=True)
def photo(path):
    (path.parent / "photo.png").write_bytes(encoded(quadrants(), "PNG"))


def world(folder, *, is_here):
    blind, eyes = folder / "blind.gguf", folder / "eyes.gguf"
    here = [row("blind-8b", blind, of=BLIND, used=2.0)]
    if is_here:
        here += [
            row("broken", folder / "broken.gguf", modalities=("vision",), damage="It is a web page."),
            row("eyes-4b", eyes, of=SEEING, modalities=("vision",), used=1.0),
        ]
    best = [
        option("blind-8b", of=BLIND, worth=3.0),
        option("huge-70b", size=40 * GIB, verdict=Verdict.TOO_LARGE, of=entry("huge-70b", vision=True)),
        option("eyes-4b", of=SEEING),
    ]
    return Fake(rows=here, entries=[BLIND, SEEING], best=best)


def planned(model):
    """Plan as `driving.plan` does; a model that sees with its projector."""
    projector = ProjectorPlan(path="mmproj", name="mmproj", vision=True, audio=False)
    made = plan(model)
    return msgspec.structs.replace(made, projector=projector) if model.startswith("eyes") else made


async def asked(pilot):
    """Ask about an image, in vain."""
    await pilot.see("it is.", gone="Loading")
    await pilot.chat.pane.attach_file("photo.png")
    await pilot.see("guide cannot see images")  # before it is sent
    await pilot.say("What is this?", see="▌ guide cannot see images.")
    assert (pilot.prompt.text, len(pilot.chat.pane.images)) == ("What is this?", 1)


async def test_one_key_switches_to_a_model_that_sees(scene, path):
    engine = FakeEngine(["A photo."])
    library = world(path.parent, is_here=True).library()
    async with scene(engine, size=(100, 40), model="guide", prepare=planned, library=library) as pilot:
        await asked(pilot)
        offer = "eyes-4b sees images, and is on this machine. F8 switches to it."
        await pilot.see(offer)
        assert engine.requests == []
        await pilot.press("f8", until=lambda: pilot.chat.session.model == "eyes-4b")
        await pilot.gone("F8", "cannot see images ─╯")
        await pilot.press("enter", see="A photo.")
        assert len(engine.requests[0].messages[0].media) == 1


async def test_without_one_here_the_best_that_fits_is_downloaded(scene, path):
    wanted = []

    def decide(name, *_):
        wanted.append(name)
        raise EdgechatError("There is no network.")

    library = world(path.parent, is_here=False).library(decide=decide)
    async with scene(
        size=(100, 40), notifications=True, model="guide", prepare=planned, library=library
    ) as pilot:
        await asked(pilot)
        offer = "eyes-4b sees images, and can be downloaded. F8 downloads it."
        await pilot.see(offer)
        await pilot.press("f8", until=lambda: wanted == ["eyes-4b"])
        await pilot.gone(offer)


async def test_offline_none_is_offered_that_is_not_here_and_a_text_is_sent(scene, path):
    fake = world(path.parent, is_here=False)
    fake.offline = "offline = true"
    async with scene(
        ["Text."], size=(100, 40), model="guide", prepare=planned, library=fake.library()
    ) as pilot:
        await asked(pilot)
        await pilot.press("f8", "ctrl+c")
        await pilot.say("Without it?")
        assert pilot.engine.requests[0].messages[-1].content == "Without it?"


async def test_regenerating_with_a_model_that_does_not_see(scene, path):
    engine = FakeEngine(["A photo."], ["And text."])
    engine.model = msgspec.structs.replace(MODEL, sees=True)
    library = world(path.parent, is_here=True).library()
    async with scene(engine, size=(100, 40), model="guide", prepare=planned, library=library) as pilot:
        assert isinstance(pilot.chat, ChatScreen)
        await pilot.chat.pane.attach_file("photo.png")
        await pilot.say("What is this?")
        engine.model = MODEL
        await pilot.press("ctrl+r", see=("scripted", "cannot see images."), shown="A photo.")
        await pilot.see("F8 switches to it.")
        await pilot.say("Go on without.")  # what it misses is told to the model
        content = engine.requests[-1].messages[0].content
        assert content == "(photo.png, an image, is missing here.)\n\nWhat is this?"
        pilot.shows(hidden="F8")
