"""The KV cache: a map of its cells, how much of it was reused, and its slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.content import Content

from edgechat.base.text import mebibytes, one_line
from edgechat.engine.kv.snapshot import CacheMap, SlotState, Snapshot
from edgechat.tui.engine_room.cells import MARKS, draw_map
from edgechat.tui.engine_room.section import NO_MODEL, Section, fitting, row, wrapped

_MAP_LINES = 8
_SLOTS = 6


class CacheSection(Section):
    """The tokens that the model has read and need not read again."""

    TITLE: ClassVar[str] = "Cache"
    MEANING: ClassVar[str] = (
        "A cell holds a token that need not be read again. Pinned: the system prompt and the first turn. "
        "Own: the rest of this chat. Shared: the beginning of several chats. Kept: other chats, until their "
        "cells are needed."
    )

    def __init__(self) -> None:
        super().__init__()
        self.title_of: Callable[[str], str | None] = lambda _chat: None
        """Returns the title of the chat with an id."""
        self._snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot | None) -> None:
        """Show a snapshot; None if no model is loaded."""
        before, self._snapshot = self._snapshot, snapshot
        if snapshot is None or before is None or _shown_parts(snapshot) != _shown_parts(before):
            self.changed()

    def aside(self) -> str:
        cache = self._snapshot.cache if self._snapshot else None
        return f"{cache.used:,} of {cache.cells:,} cells" if cache else ""

    def body(self, width: int) -> list[Content]:
        if self._snapshot is None:
            return wrapped(NO_MODEL, width, ".faint")
        cache = self._snapshot.cache
        lines, unit = draw_map(cache, width, _MAP_LINES)
        lines += _legend(cache, unit, width)
        return [*lines, *_uses(self._snapshot, width), *self._slots(cache)]

    def _slots(self, cache: CacheMap) -> list[Content]:
        if not cache.slots:
            return []
        lines = [row("slots", f"{len(cache.slots)} of {cache.n_slots} in use")]
        shown = sorted(cache.slots, key=lambda slot: (not slot.busy, -slot.length))[:_SLOTS]
        digits = max(len(f"{slot.length:,}") for slot in shown)
        lines += [self._slot(slot, digits) for slot in sorted(shown, key=lambda slot: slot.id)]
        if more := len(cache.slots) - len(shown):
            lines.append(row("", (f"and {more} more", ".faint")))
        return lines

    def _slot(self, slot: SlotState, digits: int) -> Content:
        title = self.title_of(slot.chat) if slot.chat else "no chat"
        name = one_line(title, 60) if title else f"chat {one_line(slot.chat or '')[:6]}"
        state = "running  " * slot.busy + "shifted  " * slot.approximate
        return row(f"  {slot.id}", f"{slot.length:>{digits},}  {state}", (name, ".faint"))


def _shown_parts(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.cache, snapshot.draft_cache, snapshot.prompt, snapshot.on_disk


def _legend(cache: CacheMap, unit: int, width: int) -> list[Content]:
    """Return the signs with their kinds and counts, in columns, and the scale."""
    items = []
    for kind, (mark, style) in MARKS.items():
        count = cache.free if kind is None else cache.of_kind(kind)
        items.append(Content.assemble((mark, style), " ", (f"{kind or 'free':<7}", ".faint"), f"{count:>9,}"))
    items.append(Content(f"1 character = {unit:,} cell{'s' * (unit > 1)}").stylize(".faint"))
    per_line = max(1, min(3, (width + 3) // 22))
    return [Content("   ").join(items[at : at + per_line]) for at in range(0, len(items), per_line)]


def _uses(snapshot: Snapshot, width: int) -> list[Content]:
    lines: list[Content] = []
    if (prompt := snapshot.prompt) is not None:
        share = prompt.cached_tokens / max(1, prompt.prompt_tokens)
        line = row("last prompt", f"{prompt.cached_tokens:,} of {prompt.prompt_tokens:,} tokens reused")
        lines.append(fitting(width, Content.assemble(line, (f" ({share:.0%})", ".faint")), line))
    stats = snapshot.cache.stats
    if n_starts := stats.hits + stats.misses:  # prompts, and prewarmed beginnings of prompts
        hits, reused = f"{stats.hits:,} of {n_starts:,}", f", {stats.reused_tokens:,} tokens reused"
        lines.append(fitting(width, row("cache hits", hits, (reused, ".faint")), row("cache hits", hits)))
    if stats.evictions:
        lines.append(row("evicted", f"{stats.evictions:,} times", (" to make room", ".faint")))
    if (draft := snapshot.draft_cache) is not None:
        lines.append(row("draft model", f"{draft.used:,} of {draft.cells:,} cells"))
    if (disk := snapshot.on_disk) is not None and disk.count:
        chats = "chat" if disk.count == 1 else "chats"
        lines.append(row("on disk", f"{disk.count:,} {chats}, {mebibytes(disk.n_bytes)}"))
    return lines
