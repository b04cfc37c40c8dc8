"""The app on a model of another server: it answers, is listed, and another one is offered if it is gone."""

import os
from dataclasses import replace

import pytest

from edgechat import settings
from edgechat.chat.session import SessionServices
from edgechat.models.remote.listing import listings
from edgechat.settings import RemoteServer
from edgechat.tui.app import EdgechatApp, StartOptions
from edgechat.tui.models.screen import ModelsScreen
from edgechat.tui.overlays.model_switcher import ModelSwitcher
from tests.engine.remote.raw import KEY, raw_server, text
from tests.fakes import FakeEngine
from tests.tui.driving import driven, plan
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
    return EdgechatApp(StartOptions(model), services=services, library=library)


def draw(pilot, name):
    if PICTURE:
        pilot.app.save_screenshot(f"{name}.svg", PICTURE)


async def ready(pilot):
    await pilot.see("vLLM at http")


async def switcher(pilot):
    await pilot.press("f5")
    await pilot.until(lambda: isinstance(pilot.app.screen, ModelSwitcher) and "small-4b" in pilot.text)


async def test_it_answers(raw, scene, tmp_path):
    path = tmp_path / "chats.db"
    async with driven(app_on(path), size=(110, 40)) as pilot:
        await ready(pilot)
        pilot.shows("desk/qwen3-32b", "32,768 tokens")
        draw(pilot, "begin")
        await pilot.say("What is this model?", shown="Itisalargeone.")
        await pilot.press("ctrl+g", see="It reports no metrics.")
        draw(pilot, "room")
        pilot.shows(hidden="KV cache")
    turns = await scene.stored()
    assert [turn.content for turn in turns] == ["What is this model?", "Itisalargeone."]
    assert KEY not in "".join(map(str, turns))


async def test_it_is_listed_beside_local_ones(raw, tmp_path):
    async with driven(app_on(tmp_path / "chats.db"), size=(130, 40)) as pilot:
        await ready(pilot)
        await switcher(pilot)
        while "desk/gemma-3-27b" not in pilot.text:  # a busy machine answers after the list was opened
            await pilot.press("escape", until=lambda: not isinstance(pilot.app.screen, ModelSwitcher))
            await switcher(pilot)
        pilot.shows("small-4b")
        draw(pilot, "switcher")
        await pilot.press(*"gemma", "enter")
        session = pilot.chat.session
        await pilot.until(lambda: session.model == "desk/gemma-3-27b" and "131,072" in pilot.text)
        await pilot.press("ctrl+o", until=lambda: isinstance(pilot.app.screen, ModelsScreen))
        await pilot.see("On other servers")
        await pilot.press("down", see="vLLM at http")
        draw(pilot, "models")
        assert "32,768 tokens" in pilot.text or "131,072 tokens" in pilot.text
        await pilot.press("enter", until=lambda: not isinstance(pilot.app.screen, ModelsScreen))


async def test_a_server_that_is_gone(raw, tmp_path):
    path = tmp_path / "chats.db"
    async with driven(app_on(path), size=(110, 40)) as pilot:
        await ready(pilot)
        raw.chat(text("I was about"), end=False)
        await pilot.say("Once?", see="in the middle of its answer")
        settings.change(("remotes", "desk"), RemoteServer(url="http://127.0.0.1:1"))
        await pilot.see(OFFER)
        draw(pilot, "gone")
        pilot.shows("I was about")
        await pilot.press("f8")
        session = pilot.chat.session
        await pilot.until(lambda: session.model == "small-4b" and "F8" not in pilot.text)
        await pilot.say("Again?", shown="I am here.")


async def test_a_server_that_is_off_at_the_start(tmp_path):
    settings.change(("remotes", "desk"), RemoteServer(url="http://127.0.0.1:1"))
    async with driven(app_on(tmp_path / "chats.db"), size=(110, 40)) as pilot:
        await pilot.see("desk cannot be reached: the connection failed.")
        await pilot.see(OFFER)
        draw(pilot, "off")
        await pilot.press("f8")
        session = pilot.chat.session
        await pilot.until(lambda: session.model == "small-4b")
        await pilot.say("Hello?", shown="I am here.")


async def test_what_leaves_the_machine_is_told(raw, tmp_path):
    settings.change(("remotes", "desk"), RemoteServer(url="http://desk.invalid:8000", kind="vllm"))
    async with driven(app_on(tmp_path / "chats.db"), size=(110, 40)) as pilot:
        told = "What you write is sent to desk, http://desk.invalid:8000."
        await pilot.see(told)
