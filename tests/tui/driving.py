"""The app with a scripted engine behind it, for Textual's pilot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from textual.pilot import Pilot

from edgechat.chat.records import Turn
from edgechat.chat.session import SessionServices
from edgechat.chat.storage.store import Store
from edgechat.engine.types import CachePolicy
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Settings
from edgechat.tui.app import EdgechatApp
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.transcript.transcript import Transcript
from tests.fakes import FakeEngine


def plan(model: str) -> LoadPlan:
    return LoadPlan(model_path=model, model_name=model, context=4096, threads=1, reasons=(f"{model} it is.",))


def app_with(
    engine: FakeEngine,
    path: Path,
    *,
    model: str | None = None,
    last: bool = False,
    prepare: Callable[[str], LoadPlan] = plan,
    kind: type[EdgechatApp] = EdgechatApp,
    draft: str | None = None,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
    library: ModelLibrary | None = None,
    theme: str = "terminal",
) -> EdgechatApp:
    def engine_for(plan: LoadPlan, *, cache_policy: CachePolicy, **_: object) -> FakeEngine:
        engine.reopen(plan, lasting=cache_policy.disk_bytes != 0)
        return engine

    def prepared(model: str, *, leaving: Sequence[LoadPlan] = ()) -> LoadPlan:
        return prepare(model)

    services = SessionServices(lambda: path, prepared, engine_for, lambda: settings)
    return kind(model, last=last, draft=draft, services=services, library=library, theme=theme)


def chat_screen(pilot: Pilot[None]):  # type: ignore[no-untyped-def]
    return pilot.app.screen


def text_of(pilot: Pilot[None]) -> str:
    """Return what is on the screen, as a terminal would show it."""
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


async def until(pilot: Pilot[None], true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await pilot.pause()  # 20 ms and more
        if true():
            return
    raise AssertionError(f"in vain waited for it; the screen shows:\n{text_of(pilot)}")


async def say(pilot: Pilot[None], text: str) -> None:
    """Type, send, and wait for the reply to end."""
    await ask(pilot, text)
    await until(pilot, lambda: not pilot.app.screen.answering)  # type: ignore[attr-defined]
    await pilot.pause()


async def ask(pilot: Pilot[None], text: str) -> None:
    pilot.app.screen.prompt.insert(text)  # type: ignore[attr-defined]
    await pilot.press("enter")
    await pilot.pause()


async def stored_turns(path: Path) -> list[Turn]:
    store = await Store.open(path)
    (one,) = await store.chats()
    _, turns = await store.load(one.id)
    await store.close()
    return turns


def transcript(pilot: Pilot[None]) -> Transcript:
    return pilot.app.screen.query_one(Transcript)
