"""Snapshot of an engine for front ends, consisting of plain values without native objects."""

from __future__ import annotations

from typing import Literal

import msgspec

from edgechat.engine.types import Source

Kind = Literal["pinned", "shared", "own", "kept"]
"""pinned: a chat's system prompt and first turn, which stay in the cache when its window moves. shared: a
prefix used by several chats. own: other cells of a running request or of the inspected chat. kept: all
remaining cells, which are evicted when cells run short.
"""
KINDS: tuple[Kind, ...] = ("pinned", "shared", "own", "kept")
MOST_RUNS = 256
"""Maximum number of runs in a snapshot. If there are more, small runs are merged."""


class CacheStats(msgspec.Struct):
    """Prefix cache statistics since the model was loaded."""

    hits: int = 0
    """Requests that found a cached prefix."""
    misses: int = 0
    reused_tokens: int = 0
    evictions: int = 0
    """Number of slots cleared to make room."""

    def __str__(self) -> str:
        """Return a summary line for the log."""
        return (
            f"{self.hits} hits, {self.misses} misses, {self.reused_tokens} tokens reused, "
            f"{self.evictions} evictions"
        )


class Run(msgspec.Struct, frozen=True):
    """A run of cells that hold consecutive tokens."""

    start: int
    """Position of the run's first token."""
    length: int
    slots: int
    """Number of sequences that share these cells."""
    kind: Kind
    parts: int = 1
    """Number of original runs merged into this one."""


class SlotState(msgspec.Struct, frozen=True):
    """A non-empty sequence in the cache."""

    id: int
    chat: str | None
    length: int
    busy: bool
    """Whether a running request is using it."""
    approximate: bool
    """Whether any of its cells were moved by a shift."""


class CacheMap(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of the model's cache. Cells outside all runs are free."""

    cells: int
    used: int
    """Total length of all runs."""
    runs: tuple[Run, ...]
    """The runs of each slot are adjacent."""
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
    """Token counts for the current or most recent prompt."""

    prompt_tokens: int
    cached_tokens: int


class SourceState(msgspec.Struct, frozen=True):
    """State of one drafter."""

    source: Source
    acceptance: float | None
    """Recent acceptance rate for tokens whose predecessors were accepted; None before the first draft."""
    speedup: float
    """Predicted speed with its drafts, relative to plain decoding; at least 1."""


class DraftingState(msgspec.Struct, frozen=True, kw_only=True):
    """State of speculative decoding."""

    sources: tuple[SourceState, ...]
    """Empty if there are no drafters."""
    lengths: tuple[int, ...]
    """Number of tokens drafted for each stream in the last step that could draft."""
    step_seconds: float
    """C(1): how long a one-token step takes, in seconds; 0 before the first step."""
    costs: tuple[tuple[int, float], ...]
    """Pairs of n and C(n) / C(1), the relative cost of a step with n tokens."""
    speedup: float
    """Speed in recent steps, relative to plain decoding."""
    purse: float
    """Loss budget: how many tokens drafting may lose before it is paused."""
    why_off: str
    """Why drafting is off, or '' if it is on."""


class SchedulerState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the scheduler."""

    running: int
    waiting: int
    settling: bool
    """Whether a chat is being prewarmed."""
    chunk_tokens: int
    """Maximum number of prompt tokens in the next call when there are no streams."""
    step_seconds: float
    """How long a one-token call takes, in seconds; 0 before the first call."""
    batches: tuple[int, ...] = ()
    """Number of calls since the model was loaded that computed one sequence, two sequences, and so on."""


class StatesOnDisk(msgspec.Struct, frozen=True):
    """Totals for the saved chat states of all models."""

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
    """None if nothing is saved to disk or the states have not been counted yet."""
    memory_bytes: int
    """Resident memory of the worker, in bytes."""
