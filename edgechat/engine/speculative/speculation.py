"""Speculation around the engine's step: drafts are put into a planned batch, and judged once decoded."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import Backend, BatchPart, CacheFull, Logits
from edgechat.engine.kv.prefix_cache import PrefixCache
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.draft import MOST, Draft, Source
from edgechat.engine.scheduling.scheduler import Planned, Scheduler
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.controller import Controller, DraftOffer
from edgechat.engine.speculative.drafters import DraftRequest, ModelDrafter, NgramDrafter
from edgechat.engine.speculative.step_cost import LARGEST
from edgechat.planner.plan import LoadPlan

_LOG = logging.getLogger(__name__)
_INLINE = 32
"""Tokens that the draft model reads as a part of drafting; more are read ahead, in several steps."""
_READ = 256
"""Tokens that it reads ahead in a step."""
_REPLY = 200.0
"""Tokens that a reply is expected to have, before the first one has ended."""
_OVERHEAD = 0.005
"""Share of the time that may be spent on looking whether a draft pays, where none does."""
_GLANCE = 8
"""Of the steps at which nobody looks, every so many teach what a step costs: to learn takes time, too."""
_LONGEST_SKIP = 64.0
"""Steps; a look that took so long was interrupted."""


@dataclass(slots=True)
class _Step:
    """What is being done now."""

    n_streams: int
    n_rows: int
    began: float
    drafting: float = 0.0
    rounds: int = 0
    reading: float = 0.0
    looking: float = 0.0
    skipped: bool = False
    """Nobody has looked whether a draft pays."""


class Speculation:
    """The drafters of an engine, and how many tokens each drafts."""

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        controller: Controller,
        *,
        model: ModelDrafter | None = None,
        ngram: NgramDrafter | None = None,
    ) -> None:
        self.controller = controller
        self.sources: frozenset[Source] = frozenset({"model", "ngram"})
        """Who may draft, of those who are here."""
        self.lengths: tuple[int, ...] = ()
        """Tokens drafted for each stream in the last step that could draft."""
        self._backend = backend
        self._scheduler = scheduler
        self._model = model
        self._ngram = ngram
        self._step: _Step | None = None
        self._skip = 0.0
        self._reply = _REPLY
        self._read_cost = controller.round_cost / 8

    def warm_up(self, token: Sequence[int], seconds: float, *, whole: bool) -> None:
        """Learn what a token of the draft model costs, where the target's takes so many seconds."""
        self.controller.cost.observe(1, seconds)
        if self._model is None:
            return
        try:
            self.controller.round_cost = self._model.warm_up(token, whole=whole) / seconds
            self._read_cost = self.controller.round_cost / 8
        except (DecodeFailed, CacheFull) as error:
            self._lose_model(error)

    def names(self, plan: LoadPlan) -> tuple[str, ...]:
        """Return who drafts."""
        if not self.drafts:
            return ()
        model = (plan.draft.model_name,) if self._model is not None and plan.draft else ()
        return (*model, *(("n-grams",) if self._ngram is not None else ()))

    @property
    def drafts(self) -> bool:
        """Whether anybody is here to draft."""
        somebody = self._model is not None or self._ngram is not None
        return somebody and bool(self.sources) and self._backend.rolls_back > 0

    @property
    def present(self) -> tuple[Source, ...]:
        """Those who may draft now."""
        here: dict[Source, object] = {"model": self._model, "ngram": self._ngram}
        return tuple(one for one in here if here[one] is not None and one in self.sources and self.drafts)

    @property
    def draft_cache(self) -> PrefixCache | None:
        """What the draft model has read; None where there is no such model."""
        return self._model.cache if self._model is not None else None

    def draft(self, planned: Planned) -> Planned:
        """Return the batch with drafts behind the tokens of its streams, where that pays.

        Only batches of streams alone are drafted for: beside a prompt a call is long enough already.
        """
        self._step = None
        too_many = len(planned) > 1 and self._backend.rolls_back_alone
        if not self.drafts or too_many or not all(self._is_stream(*pair) for pair in planned):
            return planned
        step = self._step = _Step(len(planned), len(planned), time.perf_counter())
        if self._skip >= 1:
            self._skip -= 1
            step.skipped = True
            return planned
        streams, self.lengths = [stream for stream, _ in planned], (0,) * len(planned)
        depth = sum(len(one.tokens) for one in streams) / len(streams)
        may = self.controller.begin(len(streams), depth)
        if may and (most := self._room(planned)) > 0:
            planned = self._drafted(planned, streams, most, step)
        step.looking = time.perf_counter() - step.began - step.drafting - step.reading
        plain = self.controller.cost.seconds(len(streams))
        if step.n_rows == step.n_streams and plain > 0:
            self._skip = min(self._skip + max(step.looking / (_OVERHEAD * plain) - 1, 0.0), _LONGEST_SKIP)
        return planned

    def _is_stream(self, stream: Stream, part: BatchPart) -> bool:
        """Say whether a part is the next token of a reply, not the end of a prompt that will be forked."""
        forked = not self._backend.capabilities.cuts and part.start < stream.boundary
        return part.n_logits == 1 and len(part.tokens) == 1 and not forked

    def _room(self, planned: Planned) -> int:
        """Return how many tokens this batch may draft."""
        n = len(planned)
        rows = min(self._backend.n_outputs_max, self._backend.n_batch, LARGEST) - n
        return min(rows, self._scheduler.spare(n + rows) - n)

    def _drafted(self, planned: Planned, streams: list[Stream], most: int, step: _Step) -> Planned:
        limits = [min(self._limit(one), most) for one in streams]
        guesses = [self._lookup(one, limit) for one, limit in zip(streams, limits, strict=True)]
        bids = [
            self._bids(one, guess, limit) for one, guess, limit in zip(streams, guesses, limits, strict=True)
        ]
        if self._model is None:  # perhaps only since a moment
            bids = [[bid for bid in one if bid.source != "model"] for one in bids]
        chosen = self.controller.choose(bids, most)
        drafts: list[Draft | None] = [None] * len(streams)
        planned_in_all = sum(one.length for one in chosen if one is not None)
        n_with_model = sum(one.source == "model" for one in chosen if one is not None)
        more = (most - planned_in_all) // max(n_with_model, 1)
        wanted: list[DraftRequest] = []
        for at, choice in enumerate(chosen):
            guess = guesses[at]
            if choice is None:
                continue
            if choice.source == "ngram" and guess is not None:
                guess.cut(choice.length)
                drafts[at] = guess
            elif choice.source == "model":
                drafts[at] = draft = Draft("model")
                # Confidence may make it longer than was thought good, as far as there is room for all.
                longest = min(limits[at], MOST["model"], choice.length + more)
                beside = planned_in_all - choice.length
                takes = partial(self._takes, n_beside=beside, longest=longest)
                goes_on = partial(self._goes_on, n_beside=beside, longest=longest)
                wanted.append(DraftRequest(streams[at], draft, longest, takes, goes_on))
        if wanted:
            self._ask_model(wanted, step)
            self._trim(drafts)
        self.lengths = tuple(len(draft.tokens) if draft else 0 for draft in drafts)
        return [self._with(pair, draft, step) for pair, draft in zip(planned, drafts, strict=True)]

    def _limit(self, stream: Stream) -> int:
        """Return how many tokens may be drafted for a stream."""
        limit = min(self._backend.rolls_back, self._scheduler.cells - len(stream.tokens) - 1)
        if stream.request.max_tokens is not None:
            limit = min(limit, stream.request.max_tokens - stream.n_generated - 1)
        return limit

    def _lookup(self, stream: Stream, limit: int) -> Draft | None:
        if self._ngram is None or "ngram" not in self.sources or limit <= 0:
            return None
        guess = self._ngram.draft(stream, limit)
        if guess is not None:  # nothing follows what ends a reply
            is_end = self._backend.vocabulary.is_end
            guess.cut(next((n for n, token in enumerate(guess.tokens, 1) if is_end(token)), limit))
            guess.cut(stream.sampler.allowed(stream.constrained_reply, guess.tokens))
        return guess if guess is not None and guess.tokens else None

    def _bids(self, stream: Stream, guess: Draft | None, limit: int) -> list[DraftOffer]:
        bids: list[DraftOffer] = []
        if guess is not None:
            bids.append(DraftOffer("ngram", self.controller.chances(guess.confidence, "ngram")))
        may = "model" in self.sources and limit > 0
        if self._model is not None and may and self._is_ready(self._model, stream):
            bids.append(DraftOffer("model", self.controller.prospects("model")[:limit]))
        return bids

    def _is_ready(self, model: ModelDrafter, stream: Stream) -> bool:
        """Say whether the draft model has read the stream; let it read on if that seems worth the time."""
        if len(stream.tokens) + MOST["model"] >= model.longest:
            return False
        behind = model.n_behind(stream)
        if behind <= _INLINE:
            return True
        left = max(self._reply - stream.n_generated, self._reply / 4)
        if stream.request.max_tokens is not None:
            left = min(left, stream.request.max_tokens - stream.n_generated)
        n = min(behind - 1, _READ)
        may = self.controller.reads(behind * self._read_cost, left, n * self._read_cost)
        n = min(n, int(may / max(self._read_cost, 1e-6) + 0.5))
        if n < min(behind - 1, _INLINE):
            return False
        began = time.perf_counter()
        try:
            if not model.read(stream, n):
                return False
        except DecodeFailed as error:
            self._lose_model(error)
            return False
        seconds = time.perf_counter() - began
        if self._step is not None:
            self._step.reading += seconds
        if self.controller.cost.level > 0:
            self._read_cost += 0.5 * (seconds / n / self.controller.cost.level - self._read_cost)
        return behind - n <= _INLINE

    def _takes(self, classes: Sequence[int], n_beside: int, longest: int) -> bool:
        return self.controller.takes(self.controller.chances(classes, "model"), n_beside, longest)

    def _goes_on(self, classes: Sequence[int], n_beside: int, longest: int) -> bool:
        chances = self.controller.chances(classes, "model")
        return len(chances) < longest and self.controller.goes_on(chances, n_beside, longest)

    def _ask_model(self, wanted: list[DraftRequest], step: _Step) -> None:
        assert self._model is not None
        began = time.perf_counter()
        try:
            step.rounds = self._model.draft(wanted)
        except DecodeFailed as error:
            for one in wanted:
                one.draft.cut(0)
            self._lose_model(error)
        step.drafting = time.perf_counter() - began

    def _trim(self, drafts: list[Draft | None]) -> None:
        """Leave out what is not worth verifying after all.

        Not of what was drawn: which of its tokens are verified must not depend on what they are.
        """
        for draft in drafts:
            if draft is not None and draft.source == "model" and draft.distributions is None:
                beside = sum(len(one.tokens) for one in drafts if one is not None) - len(draft.tokens)
                chances = self.controller.chances(draft.confidence, "model")
                draft.cut(self.controller.worth_verifying(chances, beside))

    def _with(
        self, pair: tuple[Stream, BatchPart], draft: Draft | None, step: _Step
    ) -> tuple[Stream, BatchPart]:
        stream, part = pair
        if draft is None or not draft.tokens:
            return pair
        stream.draft = draft
        step.n_rows += len(draft.tokens)
        tokens = [*part.tokens, *draft.tokens]
        return stream, BatchPart(part.seq, part.start, tokens, len(tokens))

    def _lose_model(self, error: Exception) -> None:
        """The draft model is broken: nobody needs it."""
        _LOG.warning("the draft model is no longer used: %s", error)
        if self._model is not None:
            self._model.close()
        self._model = None

    def stop(self) -> None:
        """Let nobody draft any more: a fault of ours lies there, and nobody needs drafts."""
        self.sources, self._step = frozenset(), None

    @property
    def why_off(self) -> str:
        """Why nobody drafts although somebody could; '' where that is not so."""
        if self._backend.rolls_back or (self._model is None and self._ngram is None):
            return ""
        return "Drafting is not possible: the model cannot undo a rejected draft."

    # What came of it.

    def verified(self, stream: Stream, draft: Draft, n_stood: int) -> None:
        """A draft has been verified: so many of its tokens stand."""
        self.controller.acceptance[draft.source].observe(draft.confidence, n_stood)
        stream.tally.drafted += len(draft.tokens)
        stream.tally.accepted += n_stood
        stream.tally.drafts += 1

    def done(self, streams: Sequence[Stream], n_made: int) -> None:
        """The step has made so many tokens."""
        step, self._step = self._step, None
        if step is None:
            return
        seconds = time.perf_counter() - step.began
        if step.skipped:
            if int(self._skip) % _GLANCE == 0:
                self.controller.passed(step.n_streams, seconds)
            for stream in streams:
                stream.tally.seconds += seconds / step.n_streams
                stream.tally.plain_seconds += seconds / step.n_streams
            return
        decoding = seconds - step.drafting - step.reading - step.looking
        self.controller.observe(
            step.n_rows,
            n_made,
            decoding,
            rounds=step.rounds,
            drafting=step.drafting,
            looking=step.looking,
        )
        plain = n_made * self.controller.cost.seconds(step.n_streams) / step.n_streams
        for stream in streams:
            stream.tally.seconds += seconds / step.n_streams
            stream.tally.plain_seconds += plain / step.n_streams

    def gave_up(self) -> None:
        """The batch found no room: it will be planned again, and for a while without drafts."""
        self._step = None
        self._skip = max(self._skip, 16.0)

    def ended(self, stream: Stream) -> None:
        """A reply has ended."""
        self._reply += 0.2 * (min(stream.n_generated, 10 * _REPLY) - self._reply)
        self.forget(stream)

    def forget_chat(self, chat: str) -> None:
        """Keep nothing of a conversation that is deleted."""
        if self._model is not None:
            self._model.forget_chat(chat)

    def forget(self, stream: Stream) -> None:
        """A stream is no more, or has other tokens now."""
        for one in (self._model, self._ngram):
            if one is not None:
                one.forget(stream)

    def close(self) -> None:
        """Free the draft model."""
        if self._model is not None:
            self._model.close()


def verify(
    sampler: Sampler, rows: Logits, tokens: Sequence[int], draft: Draft, said: Sequence[int] = ()
) -> list[int]:
    """Return the tokens that come next: the drafted ones that stand, and one of the target's own.

    rows: logits [k + 1, n_vocab] after the last of `tokens` and after each drafted one. said: those of the
    tokens that are the reply's, where it follows a grammar. Every token is chosen with the ones before it in
    sight, so penalties count drafted tokens too, and grammars go on from them. Where it was drawn from a
    distribution it is judged by rejection sampling; a plain guess stands if the sampler chooses the same.
    Raises DecodeFailed or SchemaError.
    """
    window = max(sampler.sampling.penalty_window, 0)
    recent, so_far = list(tokens[-window:]) if window else [], list(said)
    found: list[int] = []
    for at, token in enumerate(draft.tokens):
        if draft.distributions is None:
            chosen = sampler.choose(rows[at], recent, so_far)
        else:
            chosen = sampler.verify(rows[at], recent, token, draft.distributions[at], so_far)
        found.append(chosen)
        recent.append(chosen)
        so_far.append(chosen)
        if chosen != token:
            return found
    found.append(sampler.choose(rows[len(draft.tokens)], recent, so_far))
    return found
