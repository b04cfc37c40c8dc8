"""A request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from edgechat.engine.kv.prefix_cache import Slot
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.draft import Draft, Tally
from edgechat.engine.types import ChatRequest, Timings, Usage


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with its tokens.

    `tokens` is the prompt and what was generated so far; what the slot does not hold of it is pending.
    Prefill, decode and the recovery after a preemption are therefore one and the same thing: computing
    pending tokens.
    """

    generates: ClassVar[bool] = False
    """Whether tokens are added to it; else they are only to be in the cache, for the next turn."""

    request: ChatRequest
    tokens: list[int]
    n_prompt: int
    sampler: Sampler
    arrived: float
    boundary: int = 0
    """Prompt tokens before the generation prompt: where the next turn's prompt may part from this one."""
    dropped: int = 0
    """Turns that the prompt leaves out."""
    spent: Slot | None = None
    """The slot of a turn that ended, of no more use but for what it shares with this sequence."""
    slot: Slot | None = None
    n_cached: int | None = None
    """Prompt tokens that were in the cache when the sequence first started; None before that."""
    n_shifted: int = 0
    """... of which so many had been moved there, and are approximate."""
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    n_first: int = 0
    """Tokens that came with the first one, in the same step."""
    draft: Draft | None = None
    """Tokens that are guessed to come next, in the batch that is being computed."""
    tally: Tally = field(default_factory=Tally)
    """What came of such guesses."""

    @property
    def id(self) -> str:
        """The request's."""
        return self.request.id

    @property
    def in_background(self) -> bool:
        """Whether it waits while anybody waits for something else."""
        return self.request.priority == "background"

    @property
    def n_generated(self) -> int:
        """Tokens generated so far, without an end token."""
        return len(self.tokens) - self.n_prompt

    @property
    def said(self) -> list[int]:
        """The tokens generated so far, where they follow a grammar; else nobody asks."""
        return self.tokens[self.n_prompt :] if self.sampler.constraint is not None else []

    @property
    def is_complete(self) -> bool:
        """Whether its grammar lets nothing follow."""
        constraint = self.sampler.constraint
        return constraint is not None and constraint.is_complete(self.said)

    @property
    def n_pending(self) -> int:
        """Tokens to be computed before the next one can be sampled."""
        return len(self.tokens) - (self.slot.length if self.slot else 0)

    def has_new(self, n_tokens: int, now: float) -> None:
        """Note that so many tokens have come."""
        self.last_token = now
        if not self.first_token:
            self.first_token, self.n_first = now, n_tokens

    def usage(self) -> Usage:
        """Return the counts so far."""
        return Usage(self.n_prompt, self.n_cached or 0, self.n_generated, self.dropped, self.n_shifted)

    def timings(self) -> Timings:
        """Return the rates so far."""
        if not self.first_token:
            return Timings(0.0, 0.0, 0.0)
        computed = self.n_prompt - (self.n_cached or 0)
        return Timings(
            ttft_ms=1000 * (self.first_token - self.arrived),
            prompt_tps=_rate(computed, self.first_token - self.started),
            decode_tps=_rate(self.n_generated - self.n_first, self.last_token - self.first_token),
        )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0
