"""The switcher: models by name, the one used last first."""

import pytest

from edgechat.tui.app import EdgechatApp
from edgechat.tui.overlays.model_switcher import ModelSwitcher
from tests.fakes import FakeEngine
from tests.tui.driving import app_with, driven
from tests.tui.models.test_first_run import no_hub
from tests.tui.models.test_screen import world

pytestmark = pytest.mark.slow


def app_at(tmp_path):
    library = world(tmp_path).library(decide=no_hub)
    return app_with(FakeEngine(), tmp_path / "chats.db", model="ollama/llama3.2:3b", library=library)


async def opened(pilot):
    app = pilot.app
    assert isinstance(app, EdgechatApp)
    await pilot.until(lambda: "it is." in pilot.text and not app.chat.is_opening)
    await pilot.press("f5", until=lambda: isinstance(app.screen, ModelSwitcher))
    await pilot.see("small-1b")
    return app


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_what_is_listed(tmp_path, width):
    async with driven(app_at(tmp_path), size=(width, 24)) as pilot:
        await opened(pilot)
        text = pilot.text
        assert "ollama/llama3.2:3b answers now" in text
        assert "● ollama/llama3.2:3b" in text
        assert text.index("small-1b") < text.index("↓ huge-70b") < text.index("↓ mid-8b")
        assert "broken" not in text
        assert all(len(line) <= width for line in text.splitlines())


async def test_enter_goes_to_the_one_used_before(tmp_path):
    async with driven(app_at(tmp_path), size=(100, 30)) as pilot:
        app = await opened(pilot)
        await pilot.press("enter", until=lambda: app.session.model == "small-1b")


async def test_letters_find_a_model_and_the_list_is_gone_through(tmp_path):
    async with driven(app_at(tmp_path), size=(100, 30)) as pilot:
        app = await opened(pilot)
        await pilot.press(*"b", see=("llama3.2", "small-1b"))
        await pilot.press("backspace", *"h7b", see="huge-70b", gone="small-1b")
        await pilot.press(*"xyz", see="No model matches")
        await pilot.press("enter")
        assert isinstance(app.screen, ModelSwitcher)
        await pilot.press("escape", until=lambda: app.screen is app.chat)
        assert app.session.model == "ollama/llama3.2:3b"


async def test_what_is_not_here_is_downloaded(tmp_path):
    async with driven(app_at(tmp_path), size=(100, 30)) as pilot:
        app = await opened(pilot)
        await pilot.press(*"mid", "enter")
        await pilot.until(
            lambda: [pull.name for pull in app.chat.controller.downloads.pulls.all] == ["mid-8b"]
        )
        assert app.session.model == "ollama/llama3.2:3b"


async def test_the_command_without_a_name_opens_it(tmp_path):
    async with driven(app_at(tmp_path), size=(100, 30)) as pilot:
        app = await opened(pilot)
        await pilot.press("escape", until=lambda: app.screen is app.chat)
        await pilot.ask("/model", see="ollama/llama3.2:3b answers now")
