"""Snapshot of an engine for front ends: plain values, no native objects."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.engine.types import Source

Kind = Literal["pinned", "shared", "own", "kept"]
"""pinned: a chat's system prompt and first turn, which stay when its window moves; shared: a prefix that
several chats have in common; own: cells of a running request or of the inspected chat; kept: all other cells,
evicted when cells run short.
"""
KINDS: tuple[Kind, ...] = ("pinned", "shared", "own", "kept")
MOST_RUNS = 256
"""Maximum runs in a snapshot; beyond that, small runs are merged."""


class CacheStats(msgspec.Struct):
    """Counters of the prefix cache since the model was loaded."""

    hits: int = 0
    """Requests that found a cached prefix."""
    misses: int = 0
    reused_tokens: int = 0
    evictions: int = 0
    """Slots cleared to make room."""

    def __str__(self) -> str:
        """Return a line for the log."""
        return (
            f"{self.hits} hits, {self.misses} misses, {self.reused_tokens} tokens reused, "
            f"{self.evictions} evictions"
        )


class Run(msgspec.Struct, frozen=True):
    """A run of cells with consecutive tokens."""

    start: int
    """Position of the first token."""
    length: int
    slots: int
    """Number of sequences that hold the cells."""
    kind: Kind
    parts: int = 1
    """Number of runs that were merged into this one."""


class SlotState(msgspec.Struct, frozen=True):
    """A non-empty sequence in the cache."""

    id: int
    chat: str | None
    length: int
    busy: bool
    """Whether a request is running in it."""
    approximate: bool
    """Whether cells were moved by a shift."""


class CacheMap(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of the model's cache; those outside any run are free."""

    cells: int
    used: int
    """Total length of all runs."""
    runs: tuple[Run, ...]
    """The runs of each slot are consecutive."""
    slots: tuple[SlotState, ...]
    n_slots: int
    """Number of slots, including empty ones."""
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
    """Token counts of the current or last prompt."""

    prompt_tokens: int
    cached_tokens: int


class SourceState(msgspec.Struct, frozen=True):
    """A drafter."""

    source: Source
    acceptance: float | None
    """Recent acceptance rate of tokens that follow accepted ones; None before the first draft."""
    speedup: float
    """Predicted speed with its drafts, relative to plain decoding; at least 1."""


class DraftingState(msgspec.Struct, frozen=True, kw_only=True):
    """State of speculative decoding."""

    sources: tuple[SourceState, ...]
    """Empty if there are no drafters."""
    lengths: tuple[int, ...]
    """Tokens drafted per stream in the last step that could draft."""
    step_seconds: float
    """C(1): seconds for a one-token step; 0 before the first step."""
    costs: tuple[tuple[int, float], ...]
    """Pairs (n, C(n) / C(1)): the relative cost of n tokens in one step."""
    speedup: float
    """Speed of the last steps, relative to plain decoding."""
    purse: float
    """Loss budget: how many tokens drafts may lose before drafting is paused."""
    why_off: str
    """Why drafting is off; '' if it is on."""


class SchedulerState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the scheduler."""

    running: int
    waiting: int
    settling: bool
    """Whether a chat is being prewarmed."""
    chunk_tokens: int
    """Maximum prompt tokens in the next call if there are no streams."""
    step_seconds: float
    """Seconds for a one-token call; 0 before the first call."""
    batches: tuple[int, ...] = ()
    """Number of calls, since the model was loaded, that computed one sequence, two sequences and so on."""


class StatesOnDisk(msgspec.Struct, frozen=True):
    """Saved chat states, of all models."""

    count: int
    n_bytes: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of an engine."""

    cache: CacheMap
    draft_cache: DraftCache | None
    prompt: PromptUse | None
    """None before the first request."""
    drafting: DraftingState
    work: SchedulerState
    on_disk: StatesOnDisk | None
    """None if nothing is saved to disk, or not counted yet."""
    memory_bytes: int
    """Resident memory of the worker, in bytes."""
