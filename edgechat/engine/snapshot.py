"""What an engine does and knows at one moment, as a front end gets it: plain values, nothing native."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["pinned", "shared", "own", "kept"]
"""pinned: what stays of a chat when its window moves, its system prompt and first turn; shared: what two
chats or more begin with; own: of a running request, or the chat that is looked at; kept: left by others, and
given up when cells are short."""
KINDS: tuple[Kind, ...] = ("pinned", "shared", "own", "kept")
MOST_RUNS = 256
"""Of a snapshot; where there are more, the small ones are summed up."""


class CacheStats(msgspec.Struct):
    """What the prefix cache was good for since the load."""

    hits: int = 0
    """Requests that began with something that was there."""
    misses: int = 0
    reused_tokens: int = 0
    evictions: int = 0
    """Slots emptied for somebody else's sake."""

    def __str__(self) -> str:
        """Return a line for a log."""
        return (
            f"{self.hits} hits, {self.misses} misses, {self.reused_tokens} tokens reused, "
            f"{self.evictions} evictions"
        )


class Run(msgspec.Struct, frozen=True):
    """Cells that hold tokens which follow each other."""

    start: int
    """Position of the first token."""
    length: int
    slots: int
    """How many sequences hold them."""
    kind: Kind
    parts: int = 1
    """Runs that are summed up in this one."""


class SlotState(msgspec.Struct, frozen=True):
    """A sequence of the cache that holds something."""

    id: int
    chat: str | None
    length: int
    busy: bool
    """Whether a request runs in it."""
    approximate: bool
    """Whether some of it was moved there after a cut."""


class CacheMap(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of the model's cache. What no run holds is free."""

    cells: int
    used: int
    """The lengths of all runs together."""
    runs: tuple[Run, ...]
    """Those of a slot behind each other."""
    slots: tuple[SlotState, ...]
    n_slots: int
    """With those that are empty."""
    stats: CacheStats

    def of_kind(self, kind: Kind) -> int:
        """Return how many cells are of a kind."""
        return sum(run.length for run in self.runs if run.kind == kind)

    @property
    def free(self) -> int:
        """Cells that hold nothing."""
        return self.cells - self.used


class DraftCache(msgspec.Struct, frozen=True):
    """The cells of the draft model's cache."""

    cells: int
    used: int


class PromptUse(msgspec.Struct, frozen=True):
    """What a prompt cost: the one that is computed, else the last one."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    """Until now."""


class SourceState(msgspec.Struct, frozen=True):
    """One who drafts."""

    source: Literal["model", "ngram"]
    acceptance: float | None
    """How likely a guessed token stands, those before it standing, of late; None where none was tried."""
    speedup: float
    """How many times as fast as plain decoding its drafts are likely to make the next steps; 1 at least."""


class DraftingState(msgspec.Struct, frozen=True, kw_only=True):
    """The controller of speculation."""

    sources: tuple[SourceState, ...]
    """Empty where there is nobody who could draft."""
    lengths: tuple[int, ...]
    """Tokens drafted for each stream in the last step that could draft."""
    step_seconds: float
    """C(1): a step of one token; 0 where none was seen."""
    costs: tuple[tuple[int, float], ...]
    """Of some n: C(n) / C(1), n tokens in one step."""
    speedup: float
    """Of the last steps, over plain decoding."""
    purse: float
    """Tokens that drafts may lose before they are stopped for a while."""
    why_off: str
    """Why nobody drafts now; '' where somebody may."""


class SchedulerState(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler."""

    running: int
    waiting: int
    settling: bool
    """Whether a chat's next turn is prepared in idle time."""
    chunk_tokens: int
    """Tokens that the next call may hold, of a prompt that nobody's stream waits for."""
    step_seconds: float
    """A call of one token; 0 where none was seen."""
    prompt_token_seconds: float
    """Of a prompt's token, in a chunk; 0 where none was seen."""
    batches: tuple[int, ...] = ()
    """Calls since the load that computed one sequence, two, and so on."""


class StatesOnDisk(msgspec.Struct, frozen=True):
    """The states of chats that are kept on disk, of all models."""

    count: int
    n_bytes: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    cache: CacheMap
    draft_cache: DraftCache | None
    prompt: PromptUse | None
    """None before the first request."""
    drafting: DraftingState
    work: SchedulerState
    on_disk: StatesOnDisk | None
    """None where nothing is kept there, or it is not counted yet."""
    memory_bytes: int
    """Resident memory of the worker."""
