"""A model that cannot see images says so before a question with one is sent, and another one is offered."""

import msgspec
import pytest

from edgechat.base.errors import EdgechatError
from edgechat.planner.placement.projector import ProjectorPlan
from edgechat.planner.ranking.scoring import Verdict
from edgechat.tui.chat.screen import ChatScreen
from tests.base.images.files import encoded, quadrants
from tests.fakes import MODEL, FakeEngine
from tests.tui.driving import app_with, plan, say, text_of, until
from tests.tui.libraries import GIB, Fake, entry, option, row

pytestmark = pytest.mark.slow

SEEING = entry("eyes-4b", vision=True)
BLIND = entry("blind-8b")


@pytest.fixture
def path(tmp_path, monkeypatch):
    (tmp_path / "photo.png").write_bytes(encoded(quadrants(), "PNG"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


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
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    await until(pilot, lambda: "Loading" not in text_of(pilot) and "it is." in text_of(pilot))
    await screen.pane.attach_file("photo.png")
    await until(pilot, lambda: "guide cannot see images" in text_of(pilot))  # before it is sent
    await say(pilot, "What is this?")
    await until(pilot, lambda: "▌ guide cannot see images." in text_of(pilot))
    assert (screen.prompt.text, len(screen.pane.images)) == ("What is this?", 1)


async def test_one_key_switches_to_a_model_that_sees(path):
    engine = FakeEngine(["A photo."])
    library = world(path.parent, is_here=True).library()
    async with app_with(engine, path, model="guide", prepare=planned, library=library).run_test(
        size=(100, 40)
    ) as pilot:
        await asked(pilot)
        offer = "eyes-4b sees images, and is on this machine. F8 switches to it."
        await until(pilot, lambda: offer in text_of(pilot))
        assert engine.requests == []
        await pilot.press("f8")
        await until(pilot, lambda: pilot.app.session.model == "eyes-4b")
        await until(
            pilot, lambda: "F8" not in text_of(pilot) and "cannot see images ─╯" not in text_of(pilot)
        )
        await pilot.press("enter")
        await until(pilot, lambda: "A photo." in text_of(pilot))
        assert len(engine.requests[0].messages[0].media) == 1


async def test_without_one_here_the_best_that_fits_is_downloaded(path):
    wanted = []

    def decide(name, *_):
        wanted.append(name)
        raise EdgechatError("There is no network.")

    library = world(path.parent, is_here=False).library(decide=decide)
    app = app_with(FakeEngine(), path, model="guide", prepare=planned, library=library)
    async with app.run_test(size=(100, 40), notifications=True) as pilot:
        await asked(pilot)
        offer = "eyes-4b sees images, and can be downloaded. F8 downloads it."
        await until(pilot, lambda: offer in text_of(pilot))
        await pilot.press("f8")
        await until(pilot, lambda: wanted == ["eyes-4b"])
        await until(pilot, lambda: offer not in text_of(pilot))


async def test_offline_none_is_offered_that_is_not_here_and_a_text_is_sent(path):
    fake = world(path.parent, is_here=False)
    fake.offline = "offline = true"
    engine = FakeEngine(["Text."])
    async with app_with(engine, path, model="guide", prepare=planned, library=fake.library()).run_test(
        size=(100, 40)
    ) as pilot:
        await asked(pilot)
        await pilot.press("f8", "ctrl+c")
        await say(pilot, "Without it?")
        assert engine.requests[0].messages[-1].content == "Without it?"


async def test_regenerating_with_a_model_that_does_not_see(path):
    engine = FakeEngine(["A photo."], ["And text."])
    engine.model = msgspec.structs.replace(MODEL, sees=True)
    library = world(path.parent, is_here=True).library()
    async with app_with(engine, path, model="guide", prepare=planned, library=library).run_test(
        size=(100, 40)
    ) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, ChatScreen)
        await screen.pane.attach_file("photo.png")
        await say(pilot, "What is this?")
        engine.model = MODEL
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "scripted" in text_of(pilot) and "cannot see images." in text_of(pilot))
        assert "A photo." in text_of(pilot)
        await until(pilot, lambda: "F8 switches to it." in text_of(pilot))
        await say(pilot, "Go on without.")  # what it misses is told to the model
        content = engine.requests[-1].messages[0].content
        assert content == "(photo.png, an image, is missing here.)\n\nWhat is this?"
        assert "F8" not in text_of(pilot)
