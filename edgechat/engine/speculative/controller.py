"""Draft controller: picks the draft lengths that maximize expected speed, and learns from each step.

A step with k drafted tokens yields 1 + a1 + a1 a2 + ... tokens, where a1, a2 ... are acceptance
probabilities, and takes C(streams + k), the time of the call, plus the drafting time. The value of a length
is the tokens it yields minus the tokens that the same time would yield at the current pace. Choosing the
highest value maximizes a ratio of sums (Dinkelbach 1967, "On Nonlinear Fractional Programming"). All costs
are in units of C(1).

A loss budget, called the purse, bounds the slowdown. Steps that lose time draw from it, steps that gain time
refill it up to a limit, and every step adds half a percent. While it is empty, nothing is drafted. Wrong
estimates therefore cost at most a few tokens and half a percent, no matter how the draft and the machine
behave. A single reply must not use up what other replies have gained, so each reply has its own limit for
each source. Prefill of the draft model has a separate budget. If the rest of the reply is likely to gain 1.5
times the cost, prefill may proceed; otherwise it must be paid from a fund of a few tokens, to which each step
adds a quarter of a percent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.engine.speculative.estimates import Acceptance, AcceptanceCounts, Shape, StepCost
from edgechat.engine.types import LONGEST_DRAFT, Source
from edgechat.planner.plan import LoadPlan

_ALLOWANCE = 0.005
_FIRST_PURSE = 6.0
_FULL_PURSE = 8.0
_PROBE = 3.0  # minimum purse for an exploring step
_FIRST_LOSS, _LOSS = 2.0, 0.01  # maximum loss from one source in a reply: at first, and more per token
_MARGIN = 0.02  # minimum gain from drafting, as a fraction of a plain step
_EXPLORE_EVERY, _EXPLORE_EVERY_IF_RICH = 48, 12
"""Number of steps from one exploring step to the next. The second value applies when the purse is full."""
SURE_OF_GAIN = 1.5  # minimum ratio of expected gain to cost for prefill of the draft model
_FUND, _FUNDING = 12.0, 0.0025  # a fund for prefill that may not pay off: its size, and what each step adds
_REFERENCE = 64  # number of drafting steps after which a plain step is taken as a reference
_PACE = 0.97
_FADE_EVERY = 256
_FADE = 0.9


@dataclass(frozen=True, slots=True)
class DraftOffer:
    """A draft that could be made for a stream."""

    source: Source
    chances: Sequence[float]
    """Probability that each token is accepted, given that all tokens before it are."""


@dataclass(slots=True)
class Rounds:
    """The work a drafter does in a step. Each round computes one token for each of its drafts."""

    n: int = 0
    seconds: float = 0.0


_NO_ROUNDS: Mapping[Source, Rounds] = {}


@dataclass(slots=True)
class DraftChoice:
    """The draft to make for a stream."""

    source: Source
    length: int


class Controller:
    """Chooses draft lengths and learns from each step."""

    def __init__(self, cost: StepCost, round_cost: float = 0.1) -> None:
        """round_cost: initial cost per token, in units of C(1), for drafters that run a model."""
        self.cost = cost
        self.round_costs: dict[Source, float] = {
            source: round_cost for source in LONGEST_DRAFT if source != "ngram"
        }
        """Cost per drafted token, in units of C(1), for each drafter that runs a model."""
        self.acceptance: dict[Source, Acceptance] = {source: Acceptance(source) for source in LONGEST_DRAFT}
        self.purse = _FIRST_PURSE
        self.optimistic = False
        """Whether this step explores, which means that it uses optimistic estimates."""
        self._fund = _FUND
        self._decision_cost = 0.0
        self._streams = 1
        self._made = self._spent = 1.0
        self._steps = 0
        self._since_plain = 0

    @property
    def speedup(self) -> float:
        """Tokens per second in recent steps, relative to plain decoding."""
        return self._made / self._spent

    def begin(self, n_streams: int, depth: float) -> bool:
        """Start a step with `n_streams` streams and return whether it may draft.

        depth: average number of cached tokens per stream.
        """
        self.cost.at_depth(depth)
        self._streams = n_streams
        self._steps += 1
        if self._steps % _FADE_EVERY == 0:
            for acceptance in self.acceptance.values():
                acceptance.fade(_FADE)
        every = _EXPLORE_EVERY if self.purse < _FULL_PURSE else _EXPLORE_EVERY_IF_RICH
        self.optimistic = self._steps % every == 1 and self.purse > _PROBE
        return self.purse > 0 and self._since_plain < _REFERENCE

    def may_lose(self, won: float, n_tokens: int) -> bool:
        """Return whether a source may keep drafting for a reply that has `n_tokens` tokens so far.

        won: the source's net gain in this reply, in units of C(1).
        """
        return won > -(_FIRST_LOSS + _LOSS * n_tokens)

    def chances(self, classes: Sequence[int], source: Source) -> list[float]:
        """Return the acceptance probabilities of tokens in these confidence classes."""
        rates = self.acceptance[source]
        return [rates.of_class(class_index, optimistic=self.optimistic) for class_index in classes]

    def prospects(self, source: Source, start: int = 0) -> list[float]:
        """Return the acceptance probabilities of tokens not drafted yet, from position `start` on."""
        rates = self.acceptance[source]
        return [
            rates.at_position(at, optimistic=self.optimistic) for at in range(start, LONGEST_DRAFT[source])
        ]

    def choose(self, offers: Sequence[Sequence[DraftOffer]], most: int) -> list[DraftChoice | None]:
        """Choose a draft for each stream from its offers, with at most `most` tokens in total.

        First, the best offer is picked for each stream. Then the most likely tokens from these offers are
        added to the batch, as many as pay off. Within a stream, each token is less likely than the one
        before, so tokens are always taken in order.
        """
        chosen = [max(options, key=self._value_alone, default=None) for options in offers]
        gains = [
            (gain, at) for at, offer in enumerate(chosen) if offer for gain in accumulate(offer.chances, mul)
        ]
        gains.sort(reverse=True)
        lengths = [0] * len(offers)
        best, best_value, made = list(lengths), self._margin, 0.0
        for gain, at in gains[:most]:
            lengths[at] += 1
            made += gain
            value = made - self._pace * (self._extra(sum(lengths)) + self._drafting(chosen, lengths))
            if value > best_value:
                best, best_value = list(lengths), value
        return [
            DraftChoice(offer.source, n) if offer and n else None
            for offer, n in zip(chosen, best, strict=True)
        ]

    def is_worth_drafting(
        self, source: Source, chances: Sequence[float], n_beside: int, longest: int
    ) -> bool:
        """Return whether another token should be drafted after tokens with these probabilities.

        n_beside: number of other drafted tokens in this step.
        """
        ahead = self.prospects(source, len(chances))
        values = self._values([*chances, *ahead][:longest], n_beside)
        now, price = max(values[: len(chances) + 1]), self._price(source)
        return any(value - price * n > now for n, value in enumerate(values[len(chances) + 1 :], 1))

    def is_worth_adding(self, source: Source, chances: Sequence[float], n_beside: int, longest: int) -> bool:
        """Return whether to add a token that is yet to be drawn. The last of `chances` is its probability."""
        ahead = self.prospects(source, len(chances))
        values = self._values([*chances, *ahead][:longest], n_beside)
        before, price = values[len(chances) - 1], self._price(source)
        return any(value - price * n > before for n, value in enumerate(values[len(chances) :]))

    def worth_verifying(self, chances: Sequence[float], n_beside: int) -> int:
        """Return how many drafted tokens are worth verifying. Must not be used for tokens drawn at random."""
        values = self._values(chances, n_beside)
        return values.index(max(values))

    def reading_budget(self, price: float, left: float, read: float) -> float:
        """Return how much prefill the draft model may do now if catching up with a stream costs `price`.

        left: expected number of tokens remaining in the reply. read: limit for this step. All costs are in
        units of C(1). Prefill that is likely to pay off is only subject to the limit. Any other prefill must
        be paid from a small fund.
        """
        if self.expected_gain("model") * left >= SURE_OF_GAIN * price:
            return read
        hoped = self.expected_gain("model", optimistic=True) * left
        if hoped < SURE_OF_GAIN * price or self.purse <= _PROBE:
            return 0.0
        spent = min(read, self._fund)
        self._fund -= spent
        return spent

    def expected_gain(self, source: Source, *, optimistic: bool = False) -> float:
        """Return the expected speedup from this source's drafts, minus 1.

        optimistic: return an upper estimate.
        """
        rates = self.acceptance[source]
        ratio = self.cost.least_ratio if optimistic else self.cost.ratio
        round_cost = self.round_costs.get(source, 0.0)
        chances = [rates.at_position(at, optimistic=optimistic) for at in range(LONGEST_DRAFT[source])]
        made: Iterator[float] = accumulate(accumulate(chances, mul), initial=1.0)
        return max(tokens / (ratio(1 + n) + n * round_cost) for n, tokens in enumerate(made)) - 1.0

    def observe(
        self,
        n_rows: int,
        n_made: int,
        seconds: float,
        *,
        rounds: Mapping[Source, Rounds] = _NO_ROUNDS,
        deciding: float = 0.0,
    ) -> float:
        """Learn from a step that yielded `n_made` tokens and spent `seconds` on decoding and verifying.

        rounds: the work done by the drafters. deciding: seconds spent deciding what to draft. Returns the
        additional cost compared with a plain step, in units of C(1).
        """
        self.cost.observe(n_rows, seconds)
        if self.cost.level > 0:
            self._decision_cost += 0.1 * (min(deciding / self.cost.level, 10.0) - self._decision_cost)
        plain = self.cost.ratio(self._streams)
        spent = self.cost.ratio(n_rows)
        for source, made_of in rounds.items():
            if made_of.n and self.cost.level > 0:
                cost = min(made_of.seconds / made_of.n / self.cost.level, 10.0)
                self.round_costs[source] += 0.1 * (cost - self.round_costs[source])
            spent += made_of.n * self.round_costs[source]
        made = n_made * plain / self._streams
        self.purse = min(self.purse + _ALLOWANCE * plain, _FULL_PURSE)
        self._fund = min(self._fund + _FUNDING * plain, _FUND)
        if n_rows > self._streams or any(one.n for one in rounds.values()):
            spent += self._decision_cost
            self._since_plain += 1
            self.purse = min(self.purse + made - spent, _FULL_PURSE)
        else:
            self._since_plain = 0
        self._made, self._spent = _PACE * self._made + made, _PACE * self._spent + spent
        return spent - plain

    def observe_undecided(self, n_streams: int, seconds: float) -> None:
        """Learn from a plain step in which the decision about drafts was skipped."""
        self._streams = n_streams
        self.observe(n_streams, n_streams, seconds, deciding=self._decision_cost * self.cost.level)

    # Values, in tokens.

    @property
    def _pace(self) -> float:
        """Tokens generated in the time C(1), in plain decoding or in recent steps, whichever is higher."""
        return max(1.0, self.speedup) * self._streams / self.cost.ratio(self._streams)

    def _price(self, source: Source) -> float:
        """Return the cost of drafting one token, expressed in tokens."""
        return self._pace * self.round_costs.get(source, 0.0)

    @property
    def _margin(self) -> float:
        return _MARGIN * self._streams + self._pace * self._decision_cost

    def _extra(self, n: int) -> float:
        """Return the cost of `n` additional rows."""
        ratio = self.cost.least_ratio if self.optimistic else self.cost.ratio
        return max(ratio(self._streams + n) - self.cost.ratio(self._streams), 0.0) if n else 0.0

    def _drafting(self, offers: Sequence[DraftOffer | None], lengths: Sequence[int]) -> float:
        """Return the cost of drafting. Streams share rounds, so the longest draft determines their number."""
        rounds: dict[Source, int] = {}
        for offer, n in zip(offers, lengths, strict=True):
            if offer is not None:
                rounds[offer.source] = max(rounds.get(offer.source, 0), n)
        return sum(n * self.round_costs.get(source, 0.0) for source, n in rounds.items())

    def _value_alone(self, offer: DraftOffer) -> float:
        """Return the value of an offer, assuming that no other stream drafts."""
        price = self._price(offer.source)
        return max((value - n * price for n, value in enumerate(self._values(offer.chances, 0))), default=0.0)

    def _values(self, chances: Sequence[float], n_beside: int) -> list[float]:
        """Return the values of verifying 0, 1, 2 ... tokens, not counting the cost of drafting them."""
        # A drafted token adds the probability that it and all tokens before it are accepted.
        made = accumulate(accumulate(chances, mul), initial=0.0)
        return [tokens - self._pace * self._extra(n_beside + n) for n, tokens in enumerate(made)]


_FILE = "speculation.json"
_PLACES = 32
_MOST_READ = 1 << 20  # maximum file size in bytes, several times its normal size
_MOST_ROUND_COST = 10.0
_PAUSE = 5.0  # minimum seconds between writes


class AcceptanceRates(msgspec.Struct, frozen=True):
    """Acceptance counts for drafts from one source."""

    by_class: AcceptanceCounts
    by_position: AcceptanceCounts


class DraftRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates learned in one setting: a model, its draft model and a machine."""

    place: str
    shapes: dict[int, Shape] = {}
    round_costs: dict[Source, float] = {}
    rates: dict[Source, AcceptanceRates] = {}
    when: float = 0.0
    """When the record was saved, in seconds since 1970."""


class DraftHistory:
    """A file of estimates learned in earlier sessions with the same model, draft model and machine."""

    def __init__(self, plan: LoadPlan) -> None:
        machine = plan.where.machine if plan.where else f"{plan.threads} threads"
        draft = plan.draft
        self._place = " | ".join(
            (
                machine,
                plan.where.build if plan.where else "",
                f"{plan.model_name} {plan.quant} {plan.file_bytes} {plan.cache_type} {plan.attention}",
                " ".join(f"{name} {n}" for name, n in zip(plan.devices, plan.split, strict=False)) or "CPU",
                f"{draft.model_name} {draft.quant}" if draft else "no model drafts",
            )
        )
        self._written = 0.0

    def restore(self, controller: Controller) -> None:
        """Initialize a controller with the saved estimates."""
        for record in _read():
            if record.place == self._place:
                controller.cost.start_with(record.shapes)
                for source, cost in record.round_costs.items():
                    if source in controller.round_costs and 0 < cost <= _MOST_ROUND_COST:
                        controller.round_costs[source] = cost
                for source, rates in record.rates.items():
                    controller.acceptance[source].start_with(rates.by_class, rates.by_position)

    def save(self, controller: Controller) -> None:
        """Save a controller's estimates, unless that was done moments ago. Takes a millisecond or two."""
        now = time.time()
        if abs(now - self._written) < _PAUSE:
            return
        self._written = now
        rates = {
            source: AcceptanceRates(record.by_class, record.by_position)
            for source, record in controller.acceptance.items()
        }
        own = DraftRecord(
            place=self._place,
            shapes=controller.cost.shapes,
            round_costs=controller.round_costs,
            rates=rates,
            when=now,
        )
        others = sorted(
            (record for record in _read() if record.place != self._place), key=lambda record: record.when
        )
        with contextlib.suppress(OSError, FolderError):
            paths.replace(_path(), msgspec.json.encode([*others[-_PLACES + 1 :], own]))


def _read() -> list[DraftRecord]:
    try:
        return msgspec.json.decode(paths.read_bytes(_path(), _MOST_READ), type=list[DraftRecord])
    except (OSError, FolderError, msgspec.MsgspecError, RecursionError):
        return []


def _path() -> Path:
    return paths.cache_dir() / _FILE
