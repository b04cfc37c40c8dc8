"""The first minute in the app: a card, a question while its model is downloaded, and its answer."""

from contextlib import asynccontextmanager

import pytest

from edgechat.tui.models.screen import ModelsScreen
from tests.hub import Fault
from tests.tui.models.test_first_run import chosen, on_the_hub, world

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "hf_cache")]


@asynccontextmanager
async def first_start(scene, *scripts, width=100):
    """The app at its first start, with the cards of `world` and downloads from the hub."""
    async with scene(*scripts, size=(width, 36), library=world(scene.path.parent).library()) as pilot:
        await pilot.until(lambda: chosen(pilot) == "card-1")
        yield pilot


@pytest.mark.parametrize("width", [60, 100, 160])
async def test_two_keys_beside_the_question(hub, home, scene, width):
    on_the_hub(hub, home, "mid-8b")
    async with first_start(scene, ["Scattering."], width=width) as pilot:
        await pilot.press("enter", until=lambda: pilot.in_chat)
        await pilot.ask("Why is the sky blue?", see="Your question will be answered once")
        assert "takes it back" in " ".join(pilot.text.split())
        assert "Take back" in pilot.text.splitlines()[-1]
        hub.mend()
        await pilot.see("Scattering.", seconds=40)
        assert pilot.chat.session.model == "mid-8b"
        pilot.shows(hidden="will be answered")


async def test_the_question_is_taken_back_with_escape(hub, home, scene):
    on_the_hub(hub, home, "mid-8b")
    async with first_start(scene, ["F1."]) as pilot:
        await pilot.press("enter", until=lambda: pilot.in_chat)
        await pilot.ask("Why?", see="waiting: Why?")
        await pilot.press("escape", until=lambda: pilot.prompt.text == "Why?")
        await pilot.press("ctrl+u")
        await pilot.ask("/guide Which key is help?", see="F1.")


@pytest.mark.usefixtures("no_waits")
async def test_a_download_that_fails_gives_the_question_back(hub, home, scene):
    on_the_hub(hub, home, "mid-8b")
    hub.mend()
    hub.fail("store", Fault(wait=0.5, status=404))
    async with first_start(scene, ["Scattering."]) as pilot:
        await pilot.press("enter", until=lambda: pilot.in_chat)
        await pilot.ask("Why is the sky blue?")
        await pilot.see("mid-8b was not downloaded", seconds=20)
        assert pilot.prompt.text == "Why is the sky blue?"
        hub.mend()
        await pilot.press("ctrl+o", see="Not downloaded")
        assert isinstance(pilot.app.screen, ModelsScreen)
        assert "Retry" in pilot.text.splitlines()[-1]
        await pilot.press("enter", "escape", until=lambda: pilot.in_chat)
        await pilot.press("enter")
        await pilot.see("Scattering.", seconds=40)


async def test_a_better_model_is_offered_and_chosen(hub, home, scene):
    on_the_hub(hub, home, "tiny-1b", "mid-8b")
    async with first_start(scene, ["Scattering."], ["More."]) as pilot:
        await pilot.press("b", until=lambda: pilot.in_chat)
        hub.mend()
        await pilot.until(lambda: pilot.chat.session.model == "tiny-1b", seconds=40)
        await pilot.see("A better model is ready: mid-8b. F5", seconds=40)
        assert pilot.chat.session.model == "tiny-1b"
        await pilot.press("f5", see="Current model: tiny-1b")
        await pilot.press("enter", until=lambda: pilot.chat.session.model == "mid-8b")
        await pilot.gone("A better model")


async def test_what_is_typed_at_once_stays_in_the_prompt(home, scene):
    async with scene(["F1."], size=(100, 36), library=world(scene.path.parent).library()) as pilot:
        for letters in ("How ", "big ", "may ", "models ", "be"):
            await pilot.press(*letters)
            assert pilot.in_chat
        await pilot.until(lambda: chosen(pilot) == "card-1")  # once nothing more is typed
        await pilot.press("g", until=lambda: pilot.in_chat)
        assert pilot.prompt.text == "How big may models be"


async def test_a_question_at_once_is_the_guides_and_the_next_start_asks_how_to_begin(home, scene):
    library = world(scene.path.parent).library()
    async with scene(["F1."], library=library) as pilot:
        await pilot.press(*"Which key is help?", "enter", see="F1.")
        await pilot.pause(1.5)
        assert pilot.in_chat
    async with scene([], library=library) as pilot:
        await pilot.until(lambda: chosen(pilot) == "card-1")
        await pilot.press("g", until=lambda: pilot.in_chat)
    async with scene([], library=library) as pilot:
        await pilot.see("it is.", gone="Loading")
        await pilot.pause(0.5)
        assert pilot.in_chat
