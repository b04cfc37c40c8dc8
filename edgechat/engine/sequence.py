"""A request on its way through the engine, and the slots of the cache that sequences run in."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgechat.engine.reply import Reply
from edgechat.engine.sampling import Sampler
from edgechat.engine.types import ChatRequest, Timings, Usage


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of the backend's cache: its number, and the tokens whose state it holds."""

    id: int
    tokens: list[int] = field(default_factory=list)
    last_used: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with its tokens.

    `tokens` is the prompt and what was generated so far; what the slot does not hold of it is pending.
    Prefill, decode and the recovery after a preemption are therefore one and the same thing: computing
    pending tokens.
    """

    request: ChatRequest
    tokens: list[int]
    n_prompt: int
    sampler: Sampler
    reply: Reply
    arrived: float
    slot: Slot | None = None
    n_cached: int | None = None
    """Prompt tokens that were in the cache when the sequence first started; None before that."""
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    @property
    def id(self) -> str:
        """The request's."""
        return self.request.id

    @property
    def n_generated(self) -> int:
        """Tokens generated so far, without an end token."""
        return len(self.tokens) - self.n_prompt

    @property
    def n_pending(self) -> int:
        """Tokens to be computed before the next one can be sampled."""
        return len(self.tokens) - (len(self.slot.tokens) if self.slot else 0)

    def usage(self) -> Usage:
        """Return the counts so far."""
        return Usage(self.n_prompt, self.n_cached or 0, self.n_generated)

    def timings(self) -> Timings:
        """Return the rates so far."""
        if not self.first_token:
            return Timings(0.0, 0.0, 0.0)
        computed = self.n_prompt - (self.n_cached or 0)
        return Timings(
            ttft_ms=1000 * (self.first_token - self.arrived),
            prompt_tps=_rate(computed, self.first_token - self.started),
            decode_tps=_rate(self.n_generated - 1, self.last_token - self.first_token),
        )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0


def common_prefix(left: list[int], right: list[int]) -> int:
    """Return how many tokens two lists have in common at their beginning."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    return next(at for at in range(limit) if left[at] != right[at])
