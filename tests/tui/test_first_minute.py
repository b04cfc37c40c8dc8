"""The first minute in the app: a card, a question while its model is downloaded, and its answer."""

from contextlib import asynccontextmanager

import pytest

from edgechat.tui.app import EdgechatApp
from edgechat.tui.models.screen import ModelsScreen
from tests.fakes import FakeEngine
from tests.hub import Fault
from tests.tui.driving import app_with, ask, text_of, until
from tests.tui.models.test_first_run import chosen, on_the_hub, world

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "hf_cache")]


@asynccontextmanager
async def first_start(tmp_path, engine, width=100):
    """The app at its first start, with the cards of `world` and downloads from the hub."""
    app = app_with(engine, tmp_path / "chats.db", library=world(tmp_path).library())
    async with app.run_test(size=(width, 36)) as pilot:
        await until(pilot, lambda: chosen(pilot) == "card-1")
        yield pilot


def app_of(pilot):
    assert isinstance(pilot.app, EdgechatApp)
    return pilot.app


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_two_keys_beside_the_question(hub, home, tmp_path, width):
    on_the_hub(hub, home, "mid-8b")
    async with first_start(tmp_path, FakeEngine(["Scattering."]), width) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: app_of(pilot).screen is app_of(pilot).chat)
        await ask(pilot, "Why is the sky blue?")
        await until(pilot, lambda: "is answered as soon as" in text_of(pilot))
        assert "takes it back" in " ".join(text_of(pilot).split())
        assert "Take back" in text_of(pilot).splitlines()[-1]
        hub.mend()
        await until(pilot, lambda: "Scattering." in text_of(pilot), 40)
        assert app_of(pilot).session.model == "mid-8b"
        assert "answered as soon" not in text_of(pilot)


async def test_the_question_is_taken_back_with_escape(hub, home, tmp_path):
    on_the_hub(hub, home, "mid-8b")
    async with first_start(tmp_path, FakeEngine(["F1."])) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: app_of(pilot).screen is app_of(pilot).chat)
        await ask(pilot, "Why?")
        await until(pilot, lambda: "waits: Why?" in text_of(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: app_of(pilot).chat.prompt.text == "Why?")
        await pilot.press("ctrl+u")
        await ask(pilot, "/guide Which key is help?")
        await until(pilot, lambda: "F1." in text_of(pilot))


@pytest.mark.usefixtures("no_waits")
async def test_a_download_that_fails_gives_the_question_back(hub, home, tmp_path):
    on_the_hub(hub, home, "mid-8b")
    hub.mend()
    hub.fail("store", Fault(wait=0.5, status=404))
    async with first_start(tmp_path, FakeEngine(["Scattering."])) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: app_of(pilot).screen is app_of(pilot).chat)
        await ask(pilot, "Why is the sky blue?")
        await until(pilot, lambda: "mid-8b was not downloaded" in text_of(pilot), 20)
        assert app_of(pilot).chat.prompt.text == "Why is the sky blue?"
        hub.mend()
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "Not downloaded" in text_of(pilot))
        assert isinstance(pilot.app.screen, ModelsScreen)
        assert "Retry" in text_of(pilot).splitlines()[-1]
        await pilot.press("enter", "escape")
        await until(pilot, lambda: app_of(pilot).screen is app_of(pilot).chat)
        await pilot.press("enter")
        await until(pilot, lambda: "Scattering." in text_of(pilot), 40)


async def test_a_better_model_is_offered_and_chosen(hub, home, tmp_path):
    on_the_hub(hub, home, "tiny-1b", "mid-8b")
    async with first_start(tmp_path, FakeEngine(["Scattering."], ["More."])) as pilot:
        await pilot.press("b")
        await until(pilot, lambda: app_of(pilot).screen is app_of(pilot).chat)
        hub.mend()
        await until(pilot, lambda: app_of(pilot).session.model == "tiny-1b", 40)
        await until(pilot, lambda: "A better model is ready: mid-8b. F5" in text_of(pilot), 40)
        assert app_of(pilot).session.model == "tiny-1b"
        await pilot.press("f5")
        await until(pilot, lambda: "tiny-1b answers now" in text_of(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: app_of(pilot).session.model == "mid-8b")
        await until(pilot, lambda: "A better model" not in text_of(pilot))
