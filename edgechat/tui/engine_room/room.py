"""The engine room's panel: its sections in one column, or in two if they fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from edgechat.base.text import one_line
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.protocol import Engine
from edgechat.engine.types import Finished, ModelInfo
from edgechat.models.remote.metrics import ServerLoad
from edgechat.planner.plan import LoadPlan
from edgechat.tui.engine_room.section import Section, wrapped
from edgechat.tui.engine_room.sections import (
    CacheSection,
    DraftsSection,
    MemorySection,
    ServerSection,
    SpeedSection,
)

_TWO_COLUMNS = 96
"""Minimum width for two columns, in cells."""
_LOG_BYTES, _LOG_LINES, _LOG_WIDTH = 8192, 12, 500
"""Maximum bytes read from the end of the log, lines shown, and characters per line."""


class LogSection(Section):
    """The last lines of the worker's log."""

    TITLE: ClassVar[str] = "Log"
    MEANING: ClassVar[str] = "The worker's latest log output, newest at the bottom."

    def __init__(self) -> None:
        super().__init__()
        self._log_lines: list[str] = []

    def show(self, log: str) -> None:
        lines = [one_line(line, _LOG_WIDTH) for line in log.splitlines() if line.strip()][-_LOG_LINES:]
        if lines != self._log_lines:
            self._log_lines = lines
            self.changed()

    def body(self, width: int) -> list[Content]:
        if not self._log_lines:
            return wrapped("The log is empty.", width, ".faint")
        return [Content(line).truncate(width, ellipsis=True) for line in self._log_lines]


class EngineRoom(VerticalScroll):
    """Shows snapshots of an engine's state, and any measurements that are passed in."""

    DEFAULT_CSS = """
    EngineRoom {
        width: 1fr;
        height: 1fr;
        padding: 0 1;
        background: $surface;
        scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
        scrollbar-background: $surface;

        #sections { height: auto; layout: vertical; }
        .column { height: auto; width: 1fr; }
        &.-wide #sections { layout: horizontal; }
        &.-wide #first { margin-right: 3; }
        Section { padding: 0 1 1 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "explain", "Explain"),
        Binding("escape", "screen.to_prompt", "Back"),
    ]

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.speed = SpeedSection(clock)
        self.drafts = DraftsSection()
        self.cache = CacheSection()
        self.memory = MemorySection()
        self.server = ServerSection()
        self.server.display = False
        self.log_lines = LogSection()
        self.poll_interval = 0.5
        """Seconds between snapshots of the engine."""
        self._engine: Callable[[], Engine | None] | None = None
        self._chat: Callable[[], str | None] = lambda: None
        self._poller: asyncio.Task[None] | None = None

    def compose(self) -> ComposeResult:
        with Container(id="sections"):
            with Vertical(id="first", classes="column"):
                yield self.speed
                yield self.cache
            with Vertical(id="second", classes="column"):
                yield self.drafts
                yield self.memory
                yield self.server
                yield self.log_lines

    @property
    def sections(self) -> tuple[Section, ...]:
        return self.speed, self.cache, self.drafts, self.memory, self.server, self.log_lines

    # Content.

    def show_model(self, plan: LoadPlan | None, info: ModelInfo | None) -> None:
        """Switch to another model. info: None until the model is loaded."""
        self.drafts.show_model(info)
        self.memory.show_model(plan, info)
        remote = plan.remote if plan is not None else None
        self.server.show_model(remote)
        for section in (self.drafts, self.cache, self.memory):  # a server does not report these
            section.display = remote is None
        self.server.display = remote is not None
        self.log_lines.display = remote is None or remote.is_started

    def show_snapshot(self, snapshot: Snapshot | None) -> None:
        """Show a snapshot of the engine, or that no model is loaded if it is None."""
        for section in (self.speed, self.drafts, self.cache, self.memory):
            section.show(snapshot)

    def show_server(self, load: ServerLoad | None) -> None:
        """Show the load on a remote engine's server."""
        self.server.show(load)
        self.speed.changed()

    def show_reply(self, finished: Finished) -> None:
        """Show a reply's timings and how drafts affected it."""
        self.speed.take(finished)
        self.drafts.take(finished)
        self.speed.changed()

    def show_speed(self, tokens_per_second: float) -> None:
        """Show the current speed. This may be called as often as needed."""
        self.speed.note(tokens_per_second)
        if self.is_seen and not self.follows:
            self.speed.changed()

    def show_log(self, log: str) -> None:
        """Show the end of the log written by the worker, or by a server that edgechat started."""
        if log:
            self.log_lines.display = True
        self.log_lines.show(log)

    # Polling an engine.

    @property
    def is_seen(self) -> bool:
        if not (self.is_attached and self.display):
            return False
        top = self.app.screen
        return top is self.screen or (isinstance(top, ModalScreen) and self.screen.is_current)

    @property
    def follows(self) -> bool:
        """Whether an engine is being polled."""
        return self._poller is not None

    def follow(
        self, engine: Callable[[], Engine | None], chat: Callable[[], str | None] = lambda: None
    ) -> None:
        """Poll an engine while the panel is visible.

        engine: returns the current engine, or None. chat: returns the id of the chat on screen. Set
        `cache.title_of` as well if chats should be shown by title.
        """
        self._stop_polling()
        self._engine, self._chat = engine, chat
        if self.is_attached and self.display:
            self._start_polling()

    def _start_polling(self) -> None:
        if self._engine is not None and self._poller is None:
            self._poller = asyncio.ensure_future(self._poll(self._engine))

    @on(events.Hide)
    @on(events.Unmount)
    def _stop_polling(self) -> None:
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def _poll(self, engine_of: Callable[[], Engine | None]) -> None:
        while True:
            if self.is_seen:
                engine = engine_of()
                if engine is None:
                    self.show_snapshot(None)
                else:
                    snapshot = await engine.inspect(self._chat())
                    log = await asyncio.to_thread(engine.log_tail, _LOG_BYTES)  # the disk may be slow
                    if engine.plan.remote is not None:
                        self.show_server(snapshot if isinstance(snapshot, ServerLoad) else None)
                    else:
                        self.show_snapshot(snapshot if isinstance(snapshot, Snapshot) else None)
                    self.show_log(log)
            await asyncio.sleep(self.poll_interval)

    def on_show(self) -> None:
        for section in self.sections:
            section.changed()
        self._start_polling()

    # Layout.

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= _TWO_COLUMNS, "-wide")

    def action_explain(self) -> None:
        """Show or hide the explanations of the sections."""
        for section in self.sections:
            section.explained = not section.explained
            section.changed()
