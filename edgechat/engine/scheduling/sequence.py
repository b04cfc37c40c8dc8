"""Sequence: a request on its way through the engine, with its draft."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from edgechat.engine.backends.base import AdapterSet, Distribution, MediaRun
from edgechat.engine.kv.prefix_cache import Slot
from edgechat.engine.sampling import Sampler
from edgechat.engine.types import ChatRequest, Source, SpeculationStats, Timings, Usage


@dataclass(slots=True)
class Draft:
    """Drafted tokens with the drafter's confidence."""

    source: Source
    tokens: list[int] = field(default_factory=list)
    confidence: list[int] = field(default_factory=list)
    """Confidence class of each token (see `speculative/estimates.py`)."""
    distributions: list[Distribution] | None = None
    """Distributions that the tokens were drawn from; None if they are guesses at the target's choice."""

    def cut(self, length: int) -> None:
        """Keep only the first `length` tokens."""
        del self.tokens[length:]
        del self.confidence[length:]
        if self.distributions is not None:
            del self.distributions[length:]


@dataclass(slots=True)
class Tally:
    """Counters of verified drafts and their tokens, and the seconds of steps that could draft."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0
    """Estimated seconds for the same tokens without drafts."""
    won: dict[Source, float] = field(default_factory=dict)
    """Net gain from drafts, in units of the cost of a one-token step."""

    def stats(self) -> SpeculationStats | None:
        """Return the statistics for the reply; None if nothing was drafted."""
        if not self.drafts:
            return None
        return SpeculationStats(
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            mean_length=self.drafted / self.drafts,
            speedup=self.plain_seconds / self.seconds if self.seconds > 0 else 1.0,
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with its tokens.

    `tokens` are the prompt and the tokens generated so far; those not in the slot are pending. So prefill,
    decode and recovery from preemption are the same operation: computing pending tokens.
    """

    generates: ClassVar[bool] = False
    """Whether a reply is generated; if not, the tokens are only computed into the cache (prewarming)."""

    request: ChatRequest
    tokens: list[int]
    n_prompt: int
    sampler: Sampler
    arrived: float
    adapters: AdapterSet = ()
    """LoRA adapters to compute it with."""
    boundaries: tuple[int, ...] = ()
    """Positions where later prompts may diverge; the last is the start of the generation prompt."""
    media: tuple[MediaRun, ...] = ()
    """Images and sounds among the tokens."""
    checkpoints: tuple[tuple[int, int], ...] = ()
    """Checkpoints to take: the first and the last slot length at which to take each."""
    dropped: int = 0
    """Number of turns left out of the prompt."""
    spent: Slot | None = None
    """Slot of an earlier turn, useful only for its common prefix with this sequence."""
    slot: Slot | None = None
    n_cached: int | None = None
    """Prompt tokens in the cache when the sequence first started; None before that."""
    n_shifted: int = 0
    """Cached prompt tokens that were moved by a shift and are approximate."""
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    n_first: int = 0
    """Number of tokens from the first step that generated any."""
    draft: Draft | None = None
    """Drafted tokens in the current batch."""
    tally: Tally = field(default_factory=Tally)

    @property
    def id(self) -> str:
        """Id of the request."""
        return self.request.id

    @property
    def in_background(self) -> bool:
        """Whether it runs only while nothing else waits."""
        return self.request.priority == "background"

    @property
    def n_generated(self) -> int:
        """Number of tokens generated so far, excluding an end token."""
        return len(self.tokens) - self.n_prompt

    @property
    def constrained_reply(self) -> list[int]:
        """The tokens generated so far if they follow a grammar; otherwise [], since nothing needs them."""
        return self.tokens[self.n_prompt :] if self.sampler.constraint is not None else []

    @property
    def is_complete(self) -> bool:
        """Whether its grammar allows no further tokens."""
        constraint = self.sampler.constraint
        return constraint is not None and constraint.is_complete(self.constrained_reply)

    @property
    def next_media(self) -> MediaRun | None:
        """The first image or sound yet to be computed."""
        length = self.slot.length if self.slot else 0
        return next((run for run in self.media if run.start >= length), None)

    @property
    def is_at_media(self) -> bool:
        """Whether an image or a sound is next."""
        run = self.next_media
        return run is not None and self.slot is not None and run.start == self.slot.length

    @property
    def n_candidates(self) -> int:
        """How many of the highest logits sampling needs; 0: all."""
        return 0 if self.request.logprobs is not None else self.sampler.n_candidates

    @property
    def n_pending(self) -> int:
        """Number of tokens to compute before the next one can be sampled."""
        return len(self.tokens) - (self.slot.length if self.slot else 0)

    def note_tokens(self, n_tokens: int, now: float) -> None:
        """Record the time of a step that generated `n_tokens`."""
        self.last_token = now
        if not self.first_token:
            self.first_token, self.n_first = now, n_tokens

    def usage(self) -> Usage:
        """Return the token counts so far."""
        return Usage(self.n_prompt, self.n_cached or 0, self.n_generated, self.dropped, self.n_shifted)

    def timings(self) -> Timings:
        """Return the timings so far."""
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
