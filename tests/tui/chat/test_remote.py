"""The app on a model of another server: it answers, is listed, and another one is offered if it is gone."""

import os
from dataclasses import replace

import pytest

from edgechat import settings
from edgechat.chat.session import SessionServices
from edgechat.models.remote.listing import listings
from edgechat.settings import RemoteServer
from edgechat.tui.app import EdgechatApp
from edgechat.tui.models.screen import ModelsScreen
from edgechat.tui.overlays.model_switcher import ModelSwitcher
from tests.engine.remote.raw import KEY, raw_server, text
from tests.fakes import FakeEngine
from tests.tui.driving import plan, say, stored_turns, text_of, until
from tests.tui.libraries import Fake, row

pytestmark = pytest.mark.slow
PICTURE = os.environ.get("EDGECHAT_PICTURE_OF_REMOTES")
"""A folder to draw the screens into."""


OFFER = "small-4b fits, and is on this machine. F8 switches to it."


@pytest.fixture
async def raw():
    async with raw_server() as server:
        server.models(
            {"id": "qwen3-32b", "owned_by": "vllm", "max_model_len": 32768},
            {"id": "gemma-3-27b", "owned_by": "vllm", "max_model_len": 131072},
        )
        server.chat(*(text(word) for word in ["It", "is", "a", "large", "one", ".", ""]), text("", "stop"))
        settings.change(("remotes", "desk"), RemoteServer(url=server.url, key=KEY))
        yield server


def app_on(path, model="desk/qwen3-32b"):
    """Return the app with the real engine of a remote, and a fake one for local models."""
    real, local = SessionServices.real(), FakeEngine(["I am here."])

    def prepared(name, *, leaving=()):
        return real.prepare(name) if name.startswith("desk/") else plan(name)

    def engine_for(plan, *, idle_seconds, cache_policy, replan, on_note):
        if plan.remote is not None:
            return real.engine(
                plan, idle_seconds=idle_seconds, cache_policy=cache_policy, replan=replan, on_note=on_note
            )
        local.reopen(plan, lasting=True)
        return local

    services = SessionServices(lambda: path, prepared, engine_for, settings.load)
    library = Fake(rows=[row("small-4b", path.parent / "small.gguf", used=1.0)]).library()

    def hosted():
        import asyncio

        return asyncio.run(listings(settings.load().remotes))

    library = replace(library, hosted=hosted)
    return EdgechatApp(model, services=services, library=library)


def draw(pilot, name):
    if PICTURE:
        pilot.app.save_screenshot(f"{name}.svg", PICTURE)


async def ready(pilot):
    await until(pilot, lambda: "vLLM at http" in text_of(pilot))


async def switcher(pilot):
    await pilot.press("f5")
    await until(pilot, lambda: isinstance(pilot.app.screen, ModelSwitcher) and "small-4b" in text_of(pilot))


async def test_it_answers(raw, tmp_path):
    path = tmp_path / "chats.db"
    async with app_on(path).run_test(size=(110, 40)) as pilot:
        await ready(pilot)
        assert "desk/qwen3-32b" in text_of(pilot)
        assert "32,768 tokens" in text_of(pilot)
        draw(pilot, "begin")
        await say(pilot, "What is this model?")
        assert "Itisalargeone." in text_of(pilot)
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "It tells no metrics." in text_of(pilot))
        draw(pilot, "room")
        assert "KV cache" not in text_of(pilot)
    turns = await stored_turns(path)
    assert [turn.content for turn in turns] == ["What is this model?", "Itisalargeone."]
    assert KEY not in "".join(map(str, turns))


async def test_it_is_listed_beside_local_ones(raw, tmp_path):
    async with app_on(tmp_path / "chats.db").run_test(size=(130, 40)) as pilot:
        await ready(pilot)
        await switcher(pilot)
        while "desk/gemma-3-27b" not in text_of(pilot):  # a busy machine answers after the list was opened
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(pilot.app.screen, ModelSwitcher))
            await switcher(pilot)
        assert "small-4b" in text_of(pilot)
        draw(pilot, "switcher")
        await pilot.press(*"gemma", "enter")
        session = pilot.app.session
        await until(pilot, lambda: session.model == "desk/gemma-3-27b" and "131,072" in text_of(pilot))
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(pilot.app.screen, ModelsScreen))
        await until(pilot, lambda: "On other servers" in text_of(pilot))
        await pilot.press("down")
        await until(pilot, lambda: "vLLM at http" in text_of(pilot))
        draw(pilot, "models")
        assert "32,768 tokens" in text_of(pilot) or "131,072 tokens" in text_of(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ModelsScreen))


async def test_a_server_that_is_gone(raw, tmp_path):
    path = tmp_path / "chats.db"
    async with app_on(path).run_test(size=(110, 40)) as pilot:
        await ready(pilot)
        raw.chat(text("I was about"), end=False)
        await say(pilot, "Once?")
        await until(pilot, lambda: "in the middle of its answer" in text_of(pilot))
        settings.change(("remotes", "desk"), RemoteServer(url="http://127.0.0.1:1"))
        await until(pilot, lambda: OFFER in text_of(pilot))
        draw(pilot, "gone")
        assert "I was about" in text_of(pilot)
        await pilot.press("f8")
        session = pilot.app.session
        await until(pilot, lambda: session.model == "small-4b" and "F8" not in text_of(pilot))
        await say(pilot, "Again?")
        assert "I am here." in text_of(pilot)


async def test_a_server_that_is_off_at_the_start(tmp_path):
    settings.change(("remotes", "desk"), RemoteServer(url="http://127.0.0.1:1"))
    async with app_on(tmp_path / "chats.db").run_test(size=(110, 40)) as pilot:
        await until(pilot, lambda: "desk cannot be reached: there is no connection." in text_of(pilot))
        await until(pilot, lambda: OFFER in text_of(pilot))
        draw(pilot, "off")
        await pilot.press("f8")
        session = pilot.app.session
        await until(pilot, lambda: session.model == "small-4b")
        await say(pilot, "Hello?")
        assert "I am here." in text_of(pilot)


async def test_what_leaves_the_machine_is_told(raw, tmp_path):
    settings.change(("remotes", "desk"), RemoteServer(url="http://desk.invalid:8000", kind="vllm"))
    async with app_on(tmp_path / "chats.db").run_test(size=(110, 40)) as pilot:
        told = "What you write is sent to desk, http://desk.invalid:8000."
        await until(pilot, lambda: told in text_of(pilot))
