"""How many tokens to draft now: the length with the best expected tokens per second; learnt and kept.

A step of k drafted tokens makes 1 + a1 + a1 a2 + ... tokens, a being the chances that each stands, and takes
C(streams + k) and the drafting. Lengths are compared by what they make less what their time would have made
at the present pace (Dinkelbach 1967, "On Nonlinear Fractional Programming"), which is how a ratio of sums is
made largest. All costs are in units of C(1).

A purse bounds losses: what a step loses against plain decoding is paid out of it, what a step wins goes in up
to a limit, and each step adds half a percent. With an empty purse nothing is drafted, so a wrong estimate
costs a few tokens and half a percent, whatever draft and machine do. What others have won is not for one
reply to lose: each has a limit of its own for each source. Reading the stream with the draft model is
accounted for apart: it is done where the rest of a reply is likely to win half as much again, or out of a
fund of a few tokens and a quarter of a percent.
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
_PROBE = 3.0  # what must be in the purse for a step that explores
_FIRST_LOSS, _LOSS = 2.0, 0.01  # of a reply by one source: at first, and more for each token
_MARGIN = 0.02  # by so much of a plain step a draft must be better than none
_EXPLORE_EVERY, _EXPLORE_EVERY_IF_RICH = 48, 12
"""Steps after which one judges lengths by what they may be worth; fewer with a full purse."""
SURE_OF_GAIN = 1.5  # reading must be likely to win so many times its cost
_FUND, _FUNDING = 12.0, 0.0025  # for reading that may not pay: its size, and what a step adds
_REFERENCE = 64  # steps with drafts after which a plain one is due, to measure by
_PACE = 0.97
_FADE_EVERY = 256
_FADE = 0.9


@dataclass(frozen=True, slots=True)
class DraftOffer:
    """What could be drafted for a stream."""

    source: Source
    chances: Sequence[float]
    """Of each token, that it stands if those before it do."""


@dataclass(slots=True)
class Rounds:
    """What a drafter has computed in a step: a token of each of its drafts in every round."""

    n: int = 0
    seconds: float = 0.0


_NO_ROUNDS: Mapping[Source, Rounds] = {}


@dataclass(slots=True)
class DraftChoice:
    """What to draft for a stream."""

    source: Source
    length: int


class Controller:
    """The choice of lengths, and what it learns from each step."""

    def __init__(self, cost: StepCost, round_cost: float = 0.1) -> None:
        """round_cost: of one token of a drafter that computes its drafts, over C(1)."""
        self.cost = cost
        self.round_costs: dict[Source, float] = {
            source: round_cost for source in LONGEST_DRAFT if source != "ngram"
        }
        """What a drafter computes for each token of a draft, over C(1)."""
        self.acceptance: dict[Source, Acceptance] = {source: Acceptance(source) for source in LONGEST_DRAFT}
        self.purse = _FIRST_PURSE
        self.optimistic = False
        """Whether this step is judged by what drafts may be worth, not by what they are thought to be."""
        self._fund = _FUND
        self._decision_cost = 0.0
        self._streams = 1
        self._made = self._spent = 1.0
        self._steps = 0
        self._since_plain = 0

    @property
    def speedup(self) -> float:
        """Tokens per second over those of plain decoding, of the last steps."""
        return self._made / self._spent

    def begin(self, n_streams: int, depth: float) -> bool:
        """Begin a step of so many streams; say whether it may draft. depth: tokens in their cache."""
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
        """Say whether a reply of so many tokens may be drafted for by a source that has won so much of it.

        won: over plain decoding, in units of C(1); less than nothing if it was lost.
        """
        return won > -(_FIRST_LOSS + _LOSS * n_tokens)

    def chances(self, classes: Sequence[int], source: Source) -> list[float]:
        """Return the chances of tokens whose confidence is known."""
        rates = self.acceptance[source]
        return [rates.of_class(class_index, optimistic=self.optimistic) for class_index in classes]

    def prospects(self, source: Source, start: int = 0) -> list[float]:
        """Return the chances of tokens that are not drafted yet, from position `start` on."""
        rates = self.acceptance[source]
        return [
            rates.at_position(at, optimistic=self.optimistic) for at in range(start, LONGEST_DRAFT[source])
        ]

    def choose(self, offers: Sequence[Sequence[DraftOffer]], most: int) -> list[DraftChoice | None]:
        """Return what to draft for each stream out of its offers; `most` tokens in all.

        Each stream takes its best offer. Then the batch takes the likeliest tokens of all of them, as many as
        pay: the chances of a stream's tokens fall from one to the next, so they come in their order.
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
        """Say whether to draft another token, those before it having these chances.

        n_beside: tokens that others draft in this step.
        """
        ahead = self.prospects(source, len(chances))
        values = self._values([*chances, *ahead][:longest], n_beside)
        now, price = max(values[: len(chances) + 1]), self._price(source)
        return any(value - price * n > now for n, value in enumerate(values[len(chances) + 1 :], 1))

    def is_worth_adding(self, source: Source, chances: Sequence[float], n_beside: int, longest: int) -> bool:
        """Say whether to draft a token with the last of these chances, which is not drawn yet."""
        ahead = self.prospects(source, len(chances))
        values = self._values([*chances, *ahead][:longest], n_beside)
        before, price = values[len(chances) - 1], self._price(source)
        return any(value - price * n > before for n, value in enumerate(values[len(chances) :]))

    def worth_verifying(self, chances: Sequence[float], n_beside: int) -> int:
        """Return how many of the drafted tokens to verify, where what was drafted may decide that."""
        values = self._values(chances, n_beside)
        return values.index(max(values))

    def reading_budget(self, price: float, left: float, read: float) -> float:
        """Return how much the draft model may read now, of `price` that it takes to reach a stream.

        All in units of C(1). left: tokens that the reply is likely to have yet. read: what a step may read.
        It is spent freely if it is likely to be won back, else out of a small fund.
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
        """Return what a draft of this source is likely to make in a step, over plain decoding, less 1.

        optimistic: as much as may well be, for what is known.
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
        """Learn from a step that has made `n_made` tokens in `seconds` of decoding and verifying.

        rounds: what drafters have computed before it. deciding: seconds that it took to find out what to
        draft. Return what the step has taken more than a plain one, in units of C(1).
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
        """Learn from a plain step for which it was not decided whether to draft."""
        self._streams = n_streams
        self.observe(n_streams, n_streams, seconds, deciding=self._decision_cost * self.cost.level)

    # Values, in tokens.

    @property
    def _pace(self) -> float:
        """Tokens for each C(1) of time: of plain decoding, or what is made of late where that is more."""
        return max(1.0, self.speedup) * self._streams / self.cost.ratio(self._streams)

    def _price(self, source: Source) -> float:
        """Return what drafting a token costs, in tokens."""
        return self._pace * self.round_costs.get(source, 0.0)

    @property
    def _margin(self) -> float:
        return _MARGIN * self._streams + self._pace * self._decision_cost

    def _extra(self, n: int) -> float:
        """Return what `n` more rows cost."""
        ratio = self.cost.least_ratio if self.optimistic else self.cost.ratio
        return max(ratio(self._streams + n) - self.cost.ratio(self._streams), 0.0) if n else 0.0

    def _drafting(self, offers: Sequence[DraftOffer | None], lengths: Sequence[int]) -> float:
        """Return what drafting costs: streams draft together, in as many rounds as the longest draft."""
        rounds: dict[Source, int] = {}
        for offer, n in zip(offers, lengths, strict=True):
            if offer is not None:
                rounds[offer.source] = max(rounds.get(offer.source, 0), n)
        return sum(n * self.round_costs.get(source, 0.0) for source, n in rounds.items())

    def _value_alone(self, offer: DraftOffer) -> float:
        """Return what an offer is worth if no other stream drafts."""
        price = self._price(offer.source)
        return max((value - n * price for n, value in enumerate(self._values(offer.chances, 0))), default=0.0)

    def _values(self, chances: Sequence[float], n_beside: int) -> list[float]:
        """Return what verifying 0, 1, 2 ... tokens is worth, without the cost of drafting them."""
        # A drafted token adds the chance that it and all before it stand.
        made = accumulate(accumulate(chances, mul), initial=0.0)
        return [tokens - self._pace * self._extra(n_beside + n) for n, tokens in enumerate(made)]


_FILE = "speculation.json"
_PLACES = 32
_MOST_READ = 1 << 20  # bytes of the file: several times what we write
_MOST_ROUND_COST = 10.0
_PAUSE = 5.0  # seconds between two writes


class AcceptanceRates(msgspec.Struct, frozen=True):
    """How often the drafts of one source stand."""

    by_class: AcceptanceCounts
    by_position: AcceptanceCounts


class DraftRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was learnt in one place."""

    place: str
    shapes: dict[int, Shape] = {}
    round_costs: dict[Source, float] = {}
    rates: dict[Source, AcceptanceRates] = {}
    when: float = 0.0
    """In seconds since 1970."""


class DraftHistory:
    """What was learnt with one model, draft and machine."""

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
        """Let a controller start with what was learnt before."""
        for record in _read():
            if record.place == self._place:
                controller.cost.start_with(record.shapes)
                for source, cost in record.round_costs.items():
                    if source in controller.round_costs and 0 < cost <= _MOST_ROUND_COST:
                        controller.round_costs[source] = cost
                for source, rates in record.rates.items():
                    controller.acceptance[source].start_with(rates.by_class, rates.by_position)

    def save(self, controller: Controller) -> None:
        """Write down what a controller knows, unless that was done just now. Takes a millisecond or two."""
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
