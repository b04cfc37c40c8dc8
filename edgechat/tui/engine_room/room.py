"""The panel: its sections below each other, or in two columns where there is room."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.screen import ModalScreen

from edgechat.engine.protocol import Engine
from edgechat.engine.snapshot import Snapshot
from edgechat.engine.types import Finished, ModelInfo
from edgechat.planner.plan import LoadPlan
from edgechat.tui.engine_room.cache import CacheSection
from edgechat.tui.engine_room.drafts import DraftsSection
from edgechat.tui.engine_room.log import LogSection
from edgechat.tui.engine_room.memory import MemorySection
from edgechat.tui.engine_room.section import Section
from edgechat.tui.engine_room.speed import SpeedSection
from edgechat.tui.engine_room.watch import SnapshotPoller

_TWO_COLUMNS = 96


class EngineRoom(VerticalScroll):
    """What the engine does and knows. Shows what it is given; asks an engine only if told to `follow` one."""

    DEFAULT_CSS = """
    EngineRoom {
        width: 1fr;
        height: 1fr;
        padding: 0 1;
        scrollbar-size-vertical: 1;

        #sections { height: auto; layout: vertical; }
        .column { height: auto; width: 1fr; }
        &.-wide #sections { layout: horizontal; }
        &.-wide #first { margin-right: 3; }
        Section { padding: 0 0 1 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "explain", "Explain"),
        Binding("escape", "screen.to_prompt", "Back"),
    ]

    def __init__(self, *, id: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(id=id)
        self.speed = SpeedSection(clock)
        self.drafts = DraftsSection()
        self.cache = CacheSection()
        self.memory = MemorySection()
        self.log_lines = LogSection()
        self._watch: SnapshotPoller | None = None

    def compose(self) -> ComposeResult:
        """See Textual."""
        with Container(id="sections"):
            with Vertical(id="first", classes="column"):
                yield self.speed
                yield self.cache
            with Vertical(id="second", classes="column"):
                yield self.drafts
                yield self.memory
                yield self.log_lines

    @property
    def sections(self) -> tuple[Section, ...]:
        """All of them, from the top."""
        return self.speed, self.cache, self.drafts, self.memory, self.log_lines

    # What it shows.

    def show_model(self, plan: LoadPlan | None, info: ModelInfo | None) -> None:
        """Show another model; `info` once it is loaded."""
        self.drafts.show_model(info)
        self.memory.show_model(plan, info)

    def show_snapshot(self, snapshot: Snapshot | None) -> None:
        """Show what the engine does now; None where no model is loaded."""
        for section in (self.speed, self.drafts, self.cache, self.memory):
            section.show(snapshot)

    def show_reply(self, finished: Finished) -> None:
        """Count a reply."""
        self.speed.take(finished)
        self.drafts.take(finished)
        self.speed.changed()

    def show_speed(self, tokens_per_second: float) -> None:
        """Note how fast text comes now; to be called as often as one likes."""
        self.speed.note(tokens_per_second)
        if self.is_seen and not self.follows:
            self.speed.changed()

    def show_log(self, log: str) -> None:
        """Show the end of the worker's log."""
        self.log_lines.show(log)

    # Where it comes from.

    @property
    def is_seen(self) -> bool:
        """Whether it is on the screen now."""
        if not (self.is_attached and self.display):
            return False
        top = self.app.screen
        return top is self.screen or (isinstance(top, ModalScreen) and self.screen.is_current)

    @property
    def follows(self) -> bool:
        """Whether an engine is asked twice a second."""
        return self._watch is not None and self._watch.runs

    def follow(
        self, engine: Callable[[], Engine | None], chat: Callable[[], str | None] = lambda: None
    ) -> None:
        """Ask an engine from now on, whenever the panel is shown; see `SnapshotPoller`.

        `cache.title_of` may be set as well: chats are then named by their titles.
        """
        if self._watch is not None:
            self._watch.stop()
        self._watch = SnapshotPoller(self, engine, chat)
        if self.is_attached and self.display:
            self._watch.start()

    def on_show(self) -> None:
        """Catch up with what has come meanwhile."""
        for section in self.sections:
            section.changed()
        if self._watch is not None:
            self._watch.start()

    def on_hide(self) -> None:
        """Nobody looks."""
        if self._watch is not None:
            self._watch.stop()

    def on_unmount(self) -> None:
        """Nobody will look any more."""
        self.on_hide()

    # How it looks.

    def on_resize(self, event: events.Resize) -> None:
        """Use the room there is."""
        self.set_class(event.size.width >= _TWO_COLUMNS, "-wide")

    def action_explain(self) -> None:
        """Show or hide what each section means."""
        for section in self.sections:
            section.explained = not section.explained
            section.changed()
