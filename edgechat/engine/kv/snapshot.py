"""A snapshot of an engine for a front end: plain values, nothing native."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.engine.types import Source

Kind = Literal["pinned", "shared", "own", "kept"]
"""pinned: a chat's system prompt and first turn, which stay when its window moves; shared: the common
beginning of several chats; own: of a running request or the inspected chat; kept: of others, evicted when
cells run short."""
KINDS: tuple[Kind, ...] = ("pinned", "shared", "own", "kept")
MOST_RUNS = 256
"""In a snapshot; if there are more, the small ones are merged."""


class CacheStats(msgspec.Struct):
    """Counts of the prefix cache since the load."""

    hits: int = 0
    """Requests that found a cached prefix."""
    misses: int = 0
    reused_tokens: int = 0
    evictions: int = 0
    """Slots emptied to make room."""

    def __str__(self) -> str:
        """Return a line for a log."""
        return (
            f"{self.hits} hits, {self.misses} misses, {self.reused_tokens} tokens reused, "
            f"{self.evictions} evictions"
        )


class Run(msgspec.Struct, frozen=True):
    """Cells that hold consecutive tokens."""

    start: int
    """Position of the first token."""
    length: int
    slots: int
    """Number of sequences that hold them."""
    kind: Kind
    parts: int = 1
    """Number of runs that were merged into this one."""


class SlotState(msgspec.Struct, frozen=True):
    """A sequence of the cache that is not empty."""

    id: int
    chat: str | None
    length: int
    busy: bool
    """Whether a request runs in it."""
    approximate: bool
    """Whether some of it was moved by a shift."""


class CacheMap(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of the model's cache; those of no run are free."""

    cells: int
    used: int
    """The lengths of all runs together."""
    runs: tuple[Run, ...]
    """Those of a slot are consecutive."""
    slots: tuple[SlotState, ...]
    n_slots: int
    """Empty ones included."""
    stats: CacheStats

    def of_kind(self, kind: Kind) -> int:
        """Return the number of cells of a kind."""
        return sum(run.length for run in self.runs if run.kind == kind)

    @property
    def free(self) -> int:
        """Number of empty cells."""
        return self.cells - self.used


class DraftCache(msgspec.Struct, frozen=True):
    """The cells of the draft model's cache."""

    cells: int
    used: int


class PromptUse(msgspec.Struct, frozen=True):
    """Token counts of the prompt that is being computed, else of the last one."""

    prompt_tokens: int
    cached_tokens: int


class SourceState(msgspec.Struct, frozen=True):
    """A drafter."""

    source: Source
    acceptance: float | None
    """Recent acceptance rate of tokens whose predecessors were accepted; None before the first draft."""
    speedup: float
    """Predicted speed of the next steps with its drafts, relative to plain decoding; at least 1."""


class DraftingState(msgspec.Struct, frozen=True, kw_only=True):
    """The controller of speculation."""

    sources: tuple[SourceState, ...]
    """Empty without drafters."""
    lengths: tuple[int, ...]
    """Tokens drafted for each stream in the last step that could draft."""
    step_seconds: float
    """C(1): seconds of a step of one token; 0 before the first."""
    costs: tuple[tuple[int, float], ...]
    """For some n: C(n) / C(1), the relative cost of n tokens in one step."""
    speedup: float
    """Of the last steps, relative to plain decoding."""
    purse: float
    """Tokens that drafts may lose before they are paused."""
    why_off: str
    """Why there are no drafts now; '' if there may be."""


class SchedulerState(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler."""

    running: int
    waiting: int
    settling: bool
    """Whether a chat is being prewarmed."""
    chunk_tokens: int
    """Tokens of a prompt that the next call may hold without streams."""
    step_seconds: float
    """Of a call of one token; 0 before the first."""
    prompt_token_seconds: float
    """Of a prompt's token in a chunk; 0 before the first."""
    batches: tuple[int, ...] = ()
    """Calls since the load that computed one sequence, two, and so on."""


class StatesOnDisk(msgspec.Struct, frozen=True):
    """The saved states of chats, of all models."""

    count: int
    n_bytes: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole snapshot."""

    cache: CacheMap
    draft_cache: DraftCache | None
    prompt: PromptUse | None
    """None before the first request."""
    drafting: DraftingState
    work: SchedulerState
    on_disk: StatesOnDisk | None
    """None if nothing is saved to disk, or not counted yet."""
    memory_bytes: int
    """Resident memory of the worker."""
