"""The app with a scripted engine, for Textual's pilot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from textual import events
from textual.app import App
from textual.keys import _character_to_key
from textual.pilot import Pilot

from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Turn
from edgechat.chat.session import SessionServices
from edgechat.chat.storage.store import Store
from edgechat.engine.types import CachePolicy
from edgechat.planner.plan import LoadPlan
from edgechat.planner.request import PlanRequest
from edgechat.settings import Settings
from edgechat.tui.app import EdgechatApp, StartOptions
from edgechat.tui.transcript.transcript import Transcript
from tests.fakes import FakeEngine, send

Texts = str | Iterable[str]
Until = Callable[[], bool] | None


def plan(model: str) -> LoadPlan:
    return LoadPlan(model_path=model, model_name=model, context=4096, threads=1, reasons=(f"{model} it is.",))


def app_with(
    engine: FakeEngine,
    path: Path,
    *,
    prepare: Callable[[str], LoadPlan] = plan,
    kind: type[EdgechatApp] = EdgechatApp,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
    **options: Any,
) -> EdgechatApp:
    """Return an app with an engine and a store. options: for EdgechatApp or StartOptions, or a `draft`."""
    started = {name: options.pop(name) for name in ("model", "last") if name in options}
    if draft := options.pop("draft", None):
        started["request"] = lambda: PlanRequest(draft=draft)

    def engine_for(plan: LoadPlan, *, cache_policy: CachePolicy, **_: object) -> FakeEngine:
        engine.reopen(plan, lasting=cache_policy.disk_bytes != 0)
        return engine

    def prepared(model: str, *, leaving: Sequence[LoadPlan] = ()) -> LoadPlan:
        return prepare(model)

    services = SessionServices(lambda: path, prepared, engine_for, lambda: settings)
    return kind(StartOptions(**started), services=services, **options)


async def stored_turns(path: Path) -> list[Turn]:
    store = await Store.open(path)
    (one,) = await store.chats()
    _, turns = await store.load(one.id)
    await store.close()
    return turns


async def hold(path: Path, *questions: str) -> list[str]:
    """Have a conversation for each question; return their ids."""
    store = await Store.open(path)
    ids = []
    for question in questions:
        conversation = Conversation(store, "guide")
        async for _ in send(conversation, FakeEngine([f"To {question}"]), question):
            pass
        ids.append(conversation.chat.id)
    await store.close()
    return ids


class Scene(Pilot[Any]):
    """A pilot that also looks at the screen.

    Actions can check their effects. see, gone: texts to wait for, until they appear or disappear. until:
    another condition to wait for. shown, hidden: texts that must then be on the screen, or must not.
    """

    @property
    def text(self) -> str:
        """The text on the screen, as a terminal would show it."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    @property
    def engine(self) -> FakeEngine:
        return self.app.engine

    @property
    def chat(self) -> Any:
        """The chat's screen, even if another one covers it."""
        return self.app.chat

    @property
    def controller(self) -> Any:
        return self.app.chat.controller

    @property
    def prompt(self) -> Any:
        return self.app.chat.prompt

    @property
    def transcript(self) -> Transcript:
        return self.app.chat.transcript

    @property
    def in_chat(self) -> bool:
        return self.app.screen is self.app.chat

    @property
    def told(self) -> list[str]:
        """The notifications still shown."""
        return [str(one.message) for one in self.app._notifications]

    async def until(self, true: Callable[[], bool], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        await self.pause()
        while not true():
            assert time.monotonic() < end, f"in vain waited for it; the screen shows:\n{self.text}"
            await asyncio.sleep(0.02)
            if true():
                await self.pause()

    async def see(
        self, *texts: str, gone: Texts = (), shown: Texts = (), hidden: Texts = (), seconds: float = 30.0
    ) -> None:
        await self.until(lambda: not self._wrong(texts, gone), seconds)
        self.shows(*_each(shown), hidden=hidden)

    async def gone(self, *texts: str, shown: Texts = (), hidden: Texts = ()) -> None:
        await self.see(gone=texts, shown=shown, hidden=hidden)

    def shows(self, *texts: str, hidden: Texts = ()) -> None:
        wrong = self._wrong(texts, hidden)
        assert not wrong, f"{wrong} is not shown, or not hidden; the screen shows:\n{self.text}"

    def _wrong(self, shown: Texts, hidden: Texts) -> list[str]:
        on_screen = self.text
        return [
            *(text for text in _each(shown) if text not in on_screen),
            *(text for text in _each(hidden) if text in on_screen),
        ]

    async def press(self, *keys: str, **look: Any) -> None:
        """Press keys, then look at the screen. Runs of four or more letters are mostly sent at once."""
        for is_letter, group in groupby(keys, lambda key: len(key) == 1):
            run = list(group)
            if is_letter and len(run) > 3:
                await super().press(run[0])
                self._burst(run[1:-1])
                del run[:-1]
            await super().press(*run)
        if "shown" in look or "hidden" in look:
            await self.pause()
        await self._look(**look)

    def _burst(self, letters: Sequence[str]) -> None:
        for letter in letters:
            event = events.Key(letter if letter.isalnum() else _character_to_key(letter), letter)
            event.set_sender(self.app)
            self.app._driver.send_message(event)

    async def say(self, text: str, **look: Any) -> None:
        """Send a message, and wait for the reply to end."""
        await self.ask(text)
        await self.until(lambda: not self.chat.answering)
        await self.pause()
        await self._look(**look)

    async def ask(self, text: str, **look: Any) -> None:
        """Send a message."""
        self.prompt.insert(text)
        await self.press("enter")
        await self.pause()
        await self._look(**look)

    async def command(self, text: str, **look: Any) -> None:
        """Run a command, replacing the prompt's content and dismissing completions."""
        self.prompt.fill(text)
        await self.press("escape", "enter", **look)

    async def _look(self, see: Texts = (), gone: Texts = (), until: Until = None, **then: Texts) -> None:
        if until is not None:
            await self.until(until)
        if see or gone:
            await self.see(*_each(see), gone=gone)
        self.shows(*_each(then.get("shown", ())), hidden=then.get("hidden", ()))

    async def resize(self, width: int, height: int) -> None:
        await self.resize_terminal(width, height)
        await self.pause()

    def place_of(self, words: str) -> tuple[int, int]:
        """Return the first position at which some words are shown."""
        rows = self.text.split("\n")
        y = next(y for y, row in enumerate(rows) if words in row)
        return rows[y].index(words), y

    async def click_on(self, words: str, *, times: int = 1, **look: Any) -> None:
        await self.click(offset=self.place_of(words), times=times)
        await self.pause()
        await self._look(**look)


def _each(texts: Texts) -> Iterable[str]:
    return (texts,) if isinstance(texts, str) else texts


@asynccontextmanager
async def driven(
    app: App[Any], size: tuple[int, int] = (80, 24), *, notifications: bool = False, tooltips: bool = False
) -> AsyncIterator[Scene]:
    """Run an app; yield its Scene."""
    async with app.run_test(size=size, notifications=notifications, tooltips=tooltips):
        yield Scene(app)


class Scenes:
    """Opens the app repeatedly with the same store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.held: list[str] = []
        """Ids of the conversations stored before the app was opened."""

    @asynccontextmanager
    async def __call__(
        self,
        *scripts: Any,
        size: tuple[int, int] = (80, 24),
        notifications: bool = False,
        tooltips: bool = False,
        say: Texts = (),
        **options: Any,
    ) -> AsyncIterator[Scene]:
        """Open the app. scripts: an engine, or its scripts. say: messages to send first."""
        engine = scripts[0] if scripts and isinstance(scripts[0], FakeEngine) else FakeEngine(*scripts)
        app = app_with(engine, self.path, **options)
        app.engine = engine  # type: ignore[attr-defined]
        async with driven(app, size, notifications=notifications, tooltips=tooltips) as scene:
            for text in _each(say):
                await scene.say(text)
            yield scene

    @asynccontextmanager
    async def loaded(
        self, *scripts: Any, say: Texts = (), held: Texts = (), **options: Any
    ) -> AsyncIterator[Scene]:
        """Open the app and wait for the model. held: earlier conversations; the first one is opened."""
        if held:
            self.held = await hold(self.path, *_each(held))
        async with self(*scripts, **options) as scene:
            await scene.see("it is.", gone="Loading")
            if held:
                await scene.controller.open(self.held[0])
            for text in _each(say):
                await scene.say(text)
            yield scene

    async def stored(self) -> list[Turn]:
        """Return the turns in the only conversation."""
        return await stored_turns(self.path)
