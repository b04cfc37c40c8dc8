"""The switcher: models by name, the one used last first."""

from contextlib import asynccontextmanager

import pytest

from edgechat.tui.overlays.model_switcher import ModelSwitcher
from tests.tui.models.test_first_run import no_hub
from tests.tui.models.test_screen import world

pytestmark = pytest.mark.slow

FIRST = "ollama/llama3.2:3b"


@asynccontextmanager
async def switching(scene, size=(100, 30)):
    """The app with its switcher open."""
    library = world(scene.path.parent).library(decide=no_hub)
    async with scene(model=FIRST, library=library, size=size) as pilot:
        await pilot.until(lambda: "it is." in pilot.text and not pilot.chat.is_opening)
        await pilot.press("f5", until=lambda: isinstance(pilot.app.screen, ModelSwitcher))
        await pilot.see("small-1b")
        yield pilot


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_what_is_listed(scene, width):
    async with switching(scene, (width, 24)) as pilot:
        pilot.shows(f"Current model: {FIRST}", f"● {FIRST}", hidden="broken")
        text = pilot.text
        assert text.index("small-1b") < text.index("↓ huge-70b") < text.index("↓ mid-8b")
        assert all(len(line) <= width for line in text.splitlines())


async def test_enter_goes_to_the_one_used_before(scene):
    async with switching(scene) as pilot:
        await pilot.press("enter", until=lambda: pilot.chat.session.model == "small-1b")


async def test_letters_find_a_model_and_the_list_is_gone_through(scene):
    async with switching(scene) as pilot:
        await pilot.press(*"b", see=("llama3.2", "small-1b"))
        await pilot.press("backspace", *"h7b", see="huge-70b", gone="small-1b")
        await pilot.press(*"xyz", see="No model matches")
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, ModelSwitcher)
        await pilot.press("escape", until=lambda: pilot.in_chat)
        assert pilot.chat.session.model == FIRST
        await pilot.ask("/model", see=f"Current model: {FIRST}")


async def test_what_is_not_here_is_downloaded(scene):
    async with switching(scene) as pilot:
        pulls = pilot.controller.models.pulls
        await pilot.press(*"mid", "enter", until=lambda: [pull.name for pull in pulls.all] == ["mid-8b"])
        assert pilot.chat.session.model == FIRST
