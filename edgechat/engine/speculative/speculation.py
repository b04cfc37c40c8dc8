"""Speculation in the engine's steps: adds drafts to a planned batch and verifies them after decoding."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import Backend, BatchPart, CacheFull, Logits, is_media
from edgechat.engine.kv.prefix_cache import PrefixCache
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.scheduler import Planned, Scheduler
from edgechat.engine.scheduling.sequence import Draft
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.controller import Controller, DraftOffer, Rounds
from edgechat.engine.speculative.drafters import (
    DraftRequest,
    HeadDrafter,
    ModelDrafter,
    NgramDrafter,
    RoundDrafter,
)
from edgechat.engine.speculative.estimates import LARGEST
from edgechat.engine.types import LONGEST_DRAFT, Source
from edgechat.planner.plan import NGRAMS, OWN_LAYERS, LoadPlan

_LOG = logging.getLogger(__name__)
_READ_INLINE = 32  # maximum tokens that the draft model reads while drafting; more are read ahead of time
_READ_AHEAD = 256  # maximum tokens that it reads ahead in one step
_FIRST_REPLY_LENGTH = 200.0  # expected tokens in a reply, until the first reply has ended
OVERHEAD = 0.005  # maximum fraction of the time to spend on decisions while drafts do not pay off
_MEASURE_EVERY = 8  # only every eighth skipped step is measured, since learning takes time as well
_LONGEST_SKIP = 64.0  # maximum steps to skip; a decision that requires more was interrupted by the system


@dataclass(slots=True)
class _Attempt:
    stream: Stream
    source: Source
    n_drafted: int
    n_stood: int = 0


@dataclass(slots=True)
class _Step:
    n_streams: int
    n_rows: int
    began: float
    rounds: dict[Source, Rounds] = field(default_factory=dict)
    attempts: list[_Attempt] = field(default_factory=list)
    reading: float = 0.0
    deciding: float = 0.0
    skipped: bool = False
    """Whether the decision about drafts was skipped in this step."""

    @property
    def drafting(self) -> float:
        """Seconds spent by the drafters."""
        return sum(rounds.seconds for rounds in self.rounds.values())


class Speculation:
    """An engine's drafters, and the way each step uses them."""

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        controller: Controller,
        *,
        model: ModelDrafter | None = None,
        head: HeadDrafter | None = None,
        ngram: NgramDrafter | None = None,
    ) -> None:
        self.controller = controller
        self.sources: frozenset[Source] = frozenset(LONGEST_DRAFT)
        """Sources that may be used."""
        self.lengths: tuple[int, ...] = ()
        """Number of tokens drafted for each stream in the last step that could draft."""
        self._backend = backend
        self._scheduler = scheduler
        self._model = model
        self._head = head
        self._ngram = ngram
        self._step: _Step | None = None
        self._to_skip = 0.0
        self._reply_length = _FIRST_REPLY_LENGTH
        self._read_cost = controller.round_costs["model"] / 8

    def warm_up(self, token: Sequence[int], seconds: float, *, whole: bool) -> None:
        """Measure each drafter's cost per token, relative to the `seconds` that the target takes."""
        self.controller.cost.observe(1, seconds)
        costs = self.controller.round_costs
        if self._head is not None:
            try:
                costs[self._head.source] = self._head.warm_up(token) / seconds
            except (DecodeFailed, CacheFull) as error:
                self._drop(self._head, error)
        if self._model is not None:
            try:
                costs["model"] = self._model.warm_up(token, whole=whole) / seconds
                self._read_cost = costs["model"] / 8
            except (DecodeFailed, CacheFull) as error:
                self._drop(self._model, error)

    def names(self, plan: LoadPlan) -> tuple[str, ...]:
        """Return the names of the drafters."""
        small = plan.draft.model_name if plan.draft else ""
        names = {
            "model": small,
            "mtp": OWN_LAYERS if plan.mtp else small,
            "eagle3": small,
            "ngram": NGRAMS,
        }
        return tuple(names[source] for source in self.present if names[source])

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter whose drafts can be rolled back."""
        return self._has_drafter and bool(self.sources) and self._backend.rolls_back > 0

    @property
    def _has_drafter(self) -> bool:
        return any((self._model, self._head, self._ngram))

    @property
    def present(self) -> tuple[Source, ...]:
        """The usable sources that have a drafter."""
        of_head: dict[Source, object] = {self._head.source: self._head} if self._head is not None else {}
        drafters: dict[Source, object] = {"model": self._model, **of_head, "ngram": self._ngram}
        usable = self.sources if self.drafts else frozenset()
        return tuple(source for source, drafter in drafters.items() if drafter and source in usable)

    @property
    def draft_cache(self) -> PrefixCache | None:
        """The draft model's cache, or None if there is no draft model."""
        return self._model.cache if self._model is not None else None

    def draft(self, planned: Planned) -> Planned:
        """Append drafts to the streams in a batch where that pays off.

        Batches that contain prompts get no drafts, since such calls already take long enough.
        """
        self._step = None
        too_many = len(planned) > 1 and self._backend.rolls_back_alone
        if not self.drafts or too_many or not all(self._is_stream(*pair) for pair in planned):
            return planned
        step = self._step = _Step(len(planned), len(planned), time.perf_counter())
        if self._to_skip >= 1:
            self._to_skip -= 1
            step.skipped = True
            return planned
        streams, self.lengths = [stream for stream, _ in planned], (0,) * len(planned)
        depth = sum(len(one.tokens) for one in streams) / len(streams)
        if self.controller.begin(len(streams), depth) and (most := self._max_drafted(planned)) > 0:
            planned = self._drafted(planned, streams, most, step)
        step.deciding = time.perf_counter() - step.began - step.drafting - step.reading
        plain = self.controller.cost.seconds(len(streams))
        if step.n_rows == step.n_streams and plain > 0:
            to_skip = self._to_skip + max(step.deciding / (OVERHEAD * plain) - 1, 0.0)
            self._to_skip = min(to_skip, _LONGEST_SKIP)
        return planned

    def _is_stream(self, stream: Stream, part: BatchPart) -> bool:
        """Return whether a part is a reply's next token and no checkpoint remains to be taken."""
        return part.n_logits == 1 and len(part.tokens) == 1 and not stream.checkpoints

    def _max_drafted(self, planned: Planned) -> int:
        n = len(planned)
        rows = min(self._backend.n_outputs_max, self._backend.n_batch, LARGEST) - n
        return min(rows, self._scheduler.n_free - n)

    def _drafted(self, planned: Planned, streams: list[Stream], most: int, step: _Step) -> Planned:
        limits = [min(self._limit(stream), most) for stream in streams]
        ngrams = [self._ngram_draft(stream, limit) for stream, limit in zip(streams, limits, strict=True)]
        offers = [
            self._offers(stream, ngram, limit)
            for stream, ngram, limit in zip(streams, ngrams, limits, strict=True)
        ]
        if self._model is None:  # the draft model may have just been dropped
            offers = [[offer for offer in stream if offer.source != "model"] for stream in offers]
        chosen = self.controller.choose(offers, most)
        drafts: list[Draft | None] = [None] * len(streams)
        n_chosen = sum(choice.length for choice in chosen if choice)
        n_computed = sum(choice.source != "ngram" for choice in chosen if choice)
        more = (most - n_chosen) // max(n_computed, 1)
        requests: dict[Source, list[DraftRequest]] = {}
        for at, (choice, ngram) in enumerate(zip(chosen, ngrams, strict=True)):
            if choice is None:
                continue
            if choice.source == "ngram" and ngram is not None:
                ngram.cut(choice.length)
                drafts[at] = ngram
            elif choice.source != "ngram":
                drafts[at] = draft = Draft(choice.source)
                # A confident draft may exceed the chosen length if the batch has room for all drafts.
                longest = min(limits[at], self._longest(choice.source), choice.length + more)
                pays = partial(self._pays, choice.source, n_beside=n_chosen - choice.length, longest=longest)
                to_add = partial(pays, self.controller.is_worth_adding)
                to_draft = partial(pays, self.controller.is_worth_drafting)
                request = DraftRequest(streams[at], draft, longest, to_add, to_draft)
                requests.setdefault(choice.source, []).append(request)
        for source, of_source in requests.items():
            self._ask(source, of_source, step)
        if requests:
            self._cut_unprofitable(drafts)
        self.lengths = tuple(len(draft.tokens) if draft else 0 for draft in drafts)
        return [self._append_draft(pair, draft, step) for pair, draft in zip(planned, drafts, strict=True)]

    def _limit(self, stream: Stream) -> int:
        limit = min(self._backend.rolls_back, self._scheduler.cells - len(stream.tokens) - 1)
        if stream.request.max_tokens is not None:
            limit = min(limit, stream.request.max_tokens - stream.n_generated - 1)
        return limit

    def _ngram_draft(self, stream: Stream, limit: int) -> Draft | None:
        if self._ngram is None or limit <= 0 or not self._may_draft("ngram", stream):
            return None
        ngram = self._ngram.draft(stream, limit)
        if ngram is not None:  # nothing is drafted after an end token
            is_end = self._backend.vocabulary.is_end
            ngram.cut(next((n for n, token in enumerate(ngram.tokens, 1) if is_end(token)), limit))
            ngram.cut(next((n for n, token in enumerate(ngram.tokens) if is_media(token)), limit))
            ngram.cut(stream.sampler.allowed(stream.constrained_reply, ngram.tokens))
        return ngram if ngram is not None and ngram.tokens else None

    def _offers(self, stream: Stream, ngram: Draft | None, limit: int) -> list[DraftOffer]:
        offers: list[DraftOffer] = []
        if ngram is not None:
            offers.append(DraftOffer("ngram", self.controller.chances(ngram.confidence, "ngram")))
        # The draft model cannot see images.
        may = limit > 0 and not stream.media and self._may_draft("model", stream)
        if self._model is not None and may and self._is_ready(self._model, stream):
            offers.append(DraftOffer("model", self.controller.prospects("model")[:limit]))
        head = self._head
        may = head is not None and limit > 0 and self._may_draft(head.source, stream)
        if head is not None and may and head.is_ready(stream):
            prospects = self.controller.prospects(head.source)[: self._longest(head.source)]
            offers.append(DraftOffer(head.source, prospects[:limit]))
        return offers

    def _may_draft(self, source: Source, stream: Stream) -> bool:
        won = stream.tally.won.get(source, 0.0)
        return source in self.sources and self.controller.may_lose(won, stream.n_generated)

    def _longest(self, source: Source) -> int:
        if self._head is not None and source == self._head.source:
            return min(LONGEST_DRAFT[source], self._head.longest)
        return LONGEST_DRAFT[source]

    def _is_ready(self, model: ModelDrafter, stream: Stream) -> bool:
        """Return whether the draft model has read the stream. If not, let it read more if worthwhile."""
        if len(stream.tokens) + LONGEST_DRAFT["model"] >= model.longest:
            return False
        behind = model.n_behind(stream)
        if behind <= _READ_INLINE:
            return True
        left = max(self._reply_length - stream.n_generated, self._reply_length / 4)
        if stream.request.max_tokens is not None:
            left = min(left, stream.request.max_tokens - stream.n_generated)
        n = min(behind - 1, _READ_AHEAD)
        may = self.controller.reading_budget(behind * self._read_cost, left, n * self._read_cost)
        n = min(n, int(may / max(self._read_cost, 1e-6) + 0.5))
        if n < min(behind - 1, _READ_INLINE):
            return False
        began = time.perf_counter()
        try:
            if not model.read(stream, n):
                return False
        except DecodeFailed as error:
            self._drop(model, error)
            return False
        seconds = time.perf_counter() - began
        if self._step is not None:
            self._step.reading += seconds
        if self.controller.cost.level > 0:
            self._read_cost += 0.5 * (seconds / n / self.controller.cost.level - self._read_cost)
        return behind - n <= _READ_INLINE

    def _pays(
        self,
        source: Source,
        decide: Callable[..., bool],
        classes: Sequence[int],
        *,
        n_beside: int,
        longest: int,
    ) -> bool:
        return decide(source, self.controller.chances(classes, source), n_beside, longest)

    def _ask(self, source: Source, requests: list[DraftRequest], step: _Step) -> None:
        drafter = self._model if source == "model" else self._head
        assert drafter is not None
        step.rounds[source] = rounds = Rounds()
        began = time.perf_counter()
        try:
            rounds.n = drafter.draft(requests)
        except DecodeFailed as error:
            for request in requests:
                request.draft.cut(0)
            self._drop(drafter, error)
        rounds.seconds = time.perf_counter() - began

    def _cut_unprofitable(self, drafts: list[Draft | None]) -> None:
        """Cut drafts down to the tokens that are worth verifying.

        Drafts whose tokens were drawn at random are not cut, since the choice of tokens to verify must not
        depend on their values.
        """
        for draft in drafts:
            if draft is not None and draft.source != "ngram" and draft.distributions is None:
                beside = sum(len(one.tokens) for one in drafts if one is not None) - len(draft.tokens)
                chances = self.controller.chances(draft.confidence, draft.source)
                draft.cut(self.controller.worth_verifying(chances, beside))

    def _append_draft(
        self, pair: tuple[Stream, BatchPart], draft: Draft | None, step: _Step
    ) -> tuple[Stream, BatchPart]:
        stream, part = pair
        if draft is None:
            return pair
        step.attempts.append(_Attempt(stream, draft.source, len(draft.tokens)))
        if not draft.tokens:
            return pair
        stream.draft = draft
        step.n_rows += len(draft.tokens)
        tokens = [*part.tokens, *draft.tokens]
        return stream, BatchPart(part.seq, part.start, tokens, len(tokens), part.n_candidates)

    def _drop(self, drafter: RoundDrafter, error: Exception) -> None:
        if drafter is self._model:
            _LOG.warning("the draft model is no longer used: %s", error)
            self.close()
            self._model = None
        else:
            _LOG.warning("the model's draft head is no longer used: %s", error)
            self._head = None

    def stop(self) -> None:
        """Stop drafting permanently, after an internal error."""
        self.sources, self._step = frozenset(), None

    @property
    def why_off(self) -> str:
        """Why the drafters cannot be used, or '' if they can or if there are none."""
        if self._backend.rolls_back or not self._has_drafter:
            return ""
        return "Drafting is not possible: the model cannot roll back a rejected draft."

    # Learning.

    def verified(self, stream: Stream, draft: Draft, n_stood: int) -> None:
        """Learn from a verified draft whose first `n_stood` tokens were accepted."""
        self.controller.acceptance[draft.source].observe(draft.confidence, n_stood)
        stream.tally.drafted += len(draft.tokens)
        stream.tally.accepted += n_stood
        stream.tally.drafts += 1
        for attempt in self._step.attempts if self._step is not None else ():
            if attempt.stream is stream:
                attempt.n_stood = n_stood

    def done(self, streams: Sequence[Stream], n_made: int) -> None:
        """Learn from the current step, which yielded `n_made` tokens."""
        step, self._step = self._step, None
        if step is None:
            return
        seconds = time.perf_counter() - step.began
        if step.skipped:
            plain = seconds
            if int(self._to_skip) % _MEASURE_EVERY == 0:
                self.controller.observe_undecided(step.n_streams, seconds)
        else:
            decoding = seconds - step.drafting - step.reading - step.deciding
            taken = self.controller.observe(
                step.n_rows,
                n_made,
                decoding,
                rounds=step.rounds,
                deciding=step.deciding,
            )
            self._share(taken, step)
            plain = n_made * self.controller.cost.seconds(step.n_streams) / step.n_streams
        for stream in streams:
            stream.tally.seconds += seconds / step.n_streams
            stream.tally.plain_seconds += plain / step.n_streams

    def _share(self, taken: float, step: _Step) -> None:
        """Record what each stream gained from its draft, less its share of the total drafting cost."""
        worth = self.controller.cost.ratio(step.n_streams) / step.n_streams
        n_drafted = sum(max(one.n_drafted, 1) for one in step.attempts)
        for one in step.attempts:
            won, share = one.stream.tally.won, taken * max(one.n_drafted, 1) / n_drafted
            won[one.source] = won.get(one.source, 0.0) + worth * one.n_stood - share

    def gave_up(self) -> None:
        """Forget a step that did not fit and will be planned again. Pause drafting for a few steps."""
        self._step = None
        self._to_skip = max(self._to_skip, 16.0)

    def ended(self, stream: Stream) -> None:
        """Learn from the length of a finished reply, then forget its stream."""
        self._reply_length += 0.2 * (min(stream.n_generated, 10 * _FIRST_REPLY_LENGTH) - self._reply_length)
        self.forget(stream)

    def forget_chat(self, chat: str) -> None:
        """Delete a chat's cache."""
        if self._model is not None:
            self._model.forget_chat(chat)

    def forget(self, stream: Stream) -> None:
        """Forget a stream that has ended or whose tokens have changed."""
        for drafter in (self._model, self._head, self._ngram):
            if drafter is not None:
                drafter.forget(stream)

    def close(self) -> None:
        """Free the draft model."""
        if self._model is not None:
            self._model.close()


def verify(
    sampler: Sampler, rows: Logits, tokens: Sequence[int], draft: Draft, reply_tokens: Sequence[int] = ()
) -> list[int]:
    """Return the next tokens: the accepted drafted tokens, followed by one token from the target.

    rows: logits [k + 1, n_vocab] after the last of `tokens` and after each drafted token. reply_tokens: the
    tokens of the reply, if it must follow a grammar. Each token is chosen given all tokens before it, so
    penalties take drafted tokens into account and grammars continue from them. Drafted tokens that were drawn
    from a distribution undergo rejection sampling. Other drafted tokens are guesses, accepted if the
    sampler chooses the same token. Raises DecodeFailed or SchemaError.
    """
    window = max(sampler.sampling.penalty_window, 0)
    recent, so_far = list(tokens[-window:]) if window else [], list(reply_tokens)
    chosen: list[int] = []
    for at, token in enumerate(draft.tokens):
        if draft.distributions is None:
            next_token = sampler.choose(rows[at], recent, so_far)
        else:
            next_token = sampler.verify(rows[at], recent, token, draft.distributions[at], so_far)
        chosen.append(next_token)
        recent.append(next_token)
        so_far.append(next_token)
        if next_token != token:
            return chosen
    chosen.append(sampler.choose(rows[len(draft.tokens)], recent, so_far))
    return chosen
