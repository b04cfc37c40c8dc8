"""Drafters: a small model, the target's own draft head, and n-grams from the conversation."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgechat.base.errors import EdgechatError, SchemaError
from edgechat.engine.backends.base import Backend, BatchPart, CacheFull, DraftHead, Logits, Vocabulary
from edgechat.engine.kv.prefix_cache import PrefixCache, Rent, Slot, common_prefix
from edgechat.engine.sampling import top_ids
from edgechat.engine.scheduling.sequence import Draft
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.estimates import class_of_match, class_of_probability
from edgechat.engine.types import LONGEST_DRAFT, Source
from edgechat.planner.plan import LoadPlan

_TOP_TOKENS = 10  # number of tokens used to compute a drafter's confidence


@dataclass(slots=True)
class DraftRequest:
    """A request for a draft that is made in rounds."""

    stream: Stream
    draft: Draft
    most: int
    is_worth_adding: Callable[[Sequence[int]], bool]
    """Whether the last of several tokens with these confidence classes is worth verifying."""
    is_worth_drafting: Callable[[Sequence[int]], bool]
    """Whether to draft another token after tokens with these confidence classes."""


class RoundDrafter(ABC):
    """A drafter that works in rounds, each of which computes the logits for one token of every draft."""

    source: Source

    def __init__(self, vocabulary: Vocabulary, n_vocab: int) -> None:
        """n_vocab: size of the target's vocabulary. The drafter's own may be slightly larger or smaller."""
        self._vocabulary = vocabulary
        self._n_vocab = min(n_vocab, vocabulary.size)

    @abstractmethod
    def _fitting_batch(self, requests: Sequence[DraftRequest]) -> list[DraftRequest]:
        """Return the requests that can be handled together in one call."""

    @abstractmethod
    def _compute(self, growing: Sequence[DraftRequest]) -> Logits | None:
        """Return one row of logits for the next token of each draft, or None if there is no room."""

    @abstractmethod
    def forget(self, stream: Stream) -> None:
        """Forget a stream that has ended or whose tokens have changed."""

    def draft(self, requests: Sequence[DraftRequest]) -> int:
        """Draft for several streams at once, one token per round. Returns the number of rounds.

        Each draft grows while `is_worth_drafting` returns True, up to its limit. Raises DecodeFailed.
        """
        growing = self._fitting_batch(requests)
        rounds = 0
        while growing:
            rows = self._compute(growing)
            if rows is None:
                break
            rounds += 1
            growing = [
                request
                for request, row in zip(growing, rows, strict=True)
                if self._draft_token(request, row[: self._n_vocab]) and self._continues(request)
            ]
        return rounds

    def _continues(self, request: DraftRequest) -> bool:
        """Return whether to continue a draft. Nothing is drafted after an end token."""
        tokens = request.draft.tokens
        ends = self._vocabulary.is_end(tokens[-1])
        return len(tokens) < request.most and not ends and request.is_worth_drafting(request.draft.confidence)

    def _draft_token(self, request: DraftRequest, row: Logits) -> bool:
        """Sample the next token of a draft from its logits, the way the target would.

        Returns False if this is not worthwhile. The confidence decides this before a token is drawn, since
        discarding drawn tokens would change the distribution.
        """
        sampler, draft = request.stream.sampler, request.draft
        window = max(sampler.sampling.penalty_window, 0)
        recent = [*request.stream.tokens[-window:], *draft.tokens] if window else []
        try:
            reply = [*request.stream.constrained_reply, *draft.tokens]
            distribution = sampler.distribution(row, recent, reply)
        except SchemaError:  # the target will raise it as well, or has better logits
            return False
        confidence = class_of_probability(
            float(distribution[1].max()) if len(distribution[0]) > 1 else _confidence(row)
        )
        if not request.is_worth_adding([*draft.confidence, confidence]):
            return False
        if sampler.is_deterministic:
            token = sampler.predict(distribution, len(draft.tokens))
        else:
            token = sampler.draw(distribution)
            draft.distributions = [*(draft.distributions or []), distribution]
        draft.tokens.append(token)
        draft.confidence.append(confidence)
        return True


def _confidence(row: Logits) -> float:
    """Return the most likely token's probability, normalized over the ten most likely tokens."""
    highest = row[top_ids(row, _TOP_TOKENS)].astype(np.float64)
    return float(1 / np.exp(highest - highest[0]).sum())


@dataclass(slots=True)
class _StreamState:
    """The part of a stream that is in the small model's cache."""

    slot: Slot
    n_read: int
    """Number of the stream's tokens that are in the cache."""
    drafted: list[int] = field(default_factory=list)
    """Drafted tokens, which follow the stream's tokens in the cache."""


class ModelDrafter(RoundDrafter):
    """Drafts with a small model that runs alongside the target and has its own cache."""

    source: Source = "model"

    def __init__(self, backend: Backend, n_vocab: int) -> None:
        """n_vocab: size of the target's vocabulary."""
        super().__init__(backend.vocabulary, n_vocab)
        self.cache = PrefixCache(backend)
        self.longest = backend.context
        """Maximum number of tokens in a stream."""
        self._backend = backend
        self._states: dict[Stream, _StreamState] = {}

    def warm_up(self, token: Sequence[int], *, whole: bool) -> float:
        """Decode one token several times and return the shortest time, as the first calls hit cold pages.

        whole: decode a full batch first. Raises DecodeFailed or CacheFull.
        """
        seconds: list[float] = []
        if whole:
            n = min(self._backend.n_batch, self._backend.context)
            self._backend.decode([BatchPart(0, 0, list(token) * n, 1)])
            self._backend.truncate(0, 0)
        for _ in range(4):
            began = time.perf_counter()
            self._backend.decode([BatchPart(0, 0, token, 1)])
            seconds.append(time.perf_counter() - began)
            self._backend.truncate(0, 0)
        return min(seconds)

    def n_behind(self, stream: Stream) -> int:
        """Return how many of a stream's tokens the small model has not read yet."""
        state = self._states.get(stream)
        if state is None:
            return len(stream.tokens) - self.cache.best(stream.tokens, len(stream.tokens) - 1)[1]
        return len(stream.tokens) - state.n_read - common_prefix(state.drafted, stream.tokens[state.n_read :])

    def read(self, stream: Stream, n_tokens: int) -> bool:
        """Read up to `n_tokens` more tokens of a stream, but never its last token.

        Returns False if there is no room.
        """
        state = self._state_of(stream)
        if state is None:
            return False
        stop = min(state.n_read + n_tokens, len(stream.tokens) - 1)
        while state.n_read < stop:
            tokens = stream.tokens[state.n_read : min(stop, state.n_read + self._backend.n_batch)]
            if self._decode([BatchPart(state.slot.id, state.n_read, tokens, 0)]) is None:
                return False
            self.cache.extend(state.slot, tokens)
            state.n_read += len(tokens)
        return True

    def _fitting_batch(self, requests: Sequence[DraftRequest]) -> list[DraftRequest]:
        """Return the requests that have a slot and whose unread tokens all fit into one call."""
        fitting: list[DraftRequest] = []
        left = self._backend.n_batch
        for request in requests:
            state = self._state_of(request.stream)
            if state is None or len(fitting) == self._backend.n_outputs_max:
                continue
            n_unread = len(request.stream.tokens) - state.slot.length
            if n_unread <= left:
                fitting.append(request)
                left -= n_unread
        return fitting

    def _compute(self, growing: Sequence[DraftRequest]) -> Logits | None:
        parts = [self._part(request) for request in growing]
        rows = self._decode(parts)
        if rows is None:
            return None
        for request, part in zip(growing, parts, strict=True):
            state = self._states[request.stream]
            self.cache.extend(state.slot, part.tokens)
            state.n_read, state.drafted = len(request.stream.tokens), list(request.draft.tokens)
        return rows

    def _part(self, request: DraftRequest) -> BatchPart:
        state = self._states[request.stream]
        start = state.slot.length
        unread = request.stream.tokens[start:]
        return BatchPart(state.slot.id, start, unread or request.draft.tokens[-1:], 1)

    def _state_of(self, stream: Stream) -> _StreamState | None:
        """Return a stream's state, its cache truncated to match its tokens, or None if no slot is free."""
        state = self._states.get(stream)
        if state is None:
            if not self.cache.has_free_slot:
                return None
            slot, n = self.cache.seat(stream.tokens)
            slot.chat = stream.request.chat
            state = self._states[stream] = _StreamState(slot, n)
        if state.drafted:
            state.n_read += common_prefix(state.drafted, stream.tokens[state.n_read :])
            state.drafted = []
        keep = min(state.n_read, len(stream.tokens) - 1)
        if keep < state.slot.length and not self.cache.truncate(state.slot, keep):
            self.cache.clear(state.slot)
        state.n_read = state.slot.length
        return state

    def _decode(self, parts: Sequence[BatchPart]) -> Logits | None:
        """Decode a batch. Return None if there is not enough room even after evicting all idle slots."""
        n_decoded = sum(part.n_logits for part in parts)
        self.cache.charge(n_decoded, sum(len(part.tokens) for part in parts) - n_decoded)
        while True:
            try:
                return self._backend.decode(parts)
            except CacheFull:
                if not self.cache.evict():
                    return None

    def forget(self, stream: Stream) -> None:
        """Release a stream's slot, keeping its cached tokens for the next turn."""
        state = self._states.pop(stream, None)
        if state is not None:
            self.cache.release(state.slot)

    def forget_chat(self, chat: str) -> None:
        """Delete a chat's cache."""
        self.cache.forget(chat)

    def close(self) -> None:
        """Free the small model."""
        self._backend.close()


def load_draft(
    plan: LoadPlan | None, target: Backend, open_backend: Callable[[LoadPlan], Backend]
) -> tuple[ModelDrafter | None, str]:
    """Load the draft model. Returns its drafter, or None and the reason why there is no drafter.

    Chats also work without a draft model. The reason is '' if the plan does not include one.
    """
    if plan is None:
        return None, ""
    try:
        backend = open_backend(plan)
    except EdgechatError as error:
        return None, f"The draft model {plan.model_name} is not used. {error.message}"
    problem = target.vocabulary.misfit(backend.vocabulary)
    # The draft model computes one token per call, so undoing a draft may mean going back several calls.
    if not problem and (not backend.rolls_back or backend.capabilities.recomputes):
        problem = "it cannot roll back a rejected draft"
    if not problem and backend.context < target.context:
        problem = f"its context is {backend.context} tokens, not {target.context}"
    if problem:
        backend.close()
        return None, f"{plan.model_name} cannot be used as a draft model: {problem}."
    drafter = ModelDrafter(backend, target.vocabulary.size)
    drafter.cache.rent = Rent.of(plan)
    return drafter, ""


class HeadDrafter(RoundDrafter):
    """Drafts with the target's draft head, which uses the target's hidden states."""

    def __init__(self, backend: Backend, head: DraftHead) -> None:
        super().__init__(backend.vocabulary, backend.vocabulary.size)
        self.source: Source = head.kind
        self.longest = head.longest
        """Maximum number of tokens in a draft."""
        self._backend = backend
        self._head = head

    def warm_up(self, token: Sequence[int]) -> float:
        """Draft a token several times and return the shortest time. Raises DecodeFailed or CacheFull."""
        seconds: list[float] = []
        for _ in range(4):
            self._backend.decode([BatchPart(0, 0, token, 1)])
            began = time.perf_counter()
            self._head.begin([(0, token[0])])
            seconds.append(time.perf_counter() - began)
            self._backend.truncate(0, 0)
        return min(seconds)

    def is_ready(self, stream: Stream) -> bool:
        """Return whether the head can draft: it must have received all of a stream's tokens but the last."""
        return stream.slot is not None and self._head.can_draft(stream.slot.id, len(stream.tokens) - 1)

    def _fitting_batch(self, requests: Sequence[DraftRequest]) -> list[DraftRequest]:
        return [request for request in requests if self.is_ready(request.stream)]

    def _compute(self, growing: Sequence[DraftRequest]) -> Logits | None:
        is_first = not growing[0].draft.tokens
        tokens = [
            (request.stream.slot.id, (request.draft.tokens or request.stream.tokens)[-1])
            for request in growing
            if request.stream.slot is not None
        ]
        try:
            return self._head.begin(tokens) if is_first else self._head.extend(tokens)
        except CacheFull:
            return None

    def forget(self, stream: Stream) -> None:
        """Do nothing, since the state is part of the target's cache."""


_LONG_PATTERN, _SHORT_PATTERN = 4, 2  # lengths of the patterns to search for, in this order
_MATCHES_TRIED = 8  # number of matches to compare, latest first
_LONGEST_MATCH = 32


class NgramDrafter:
    """Prompt lookup (Saxena 2023): drafts what followed an earlier occurrence of the latest tokens."""

    def __init__(self) -> None:
        self._texts: dict[Stream, tuple[array[int], bytearray]] = {}

    def draft(self, stream: Stream, most: int) -> Draft | None:
        """Return a draft of up to `most` tokens, or None if there is no earlier match."""
        tokens, raw = self._text(stream)
        match = self._match(tokens, raw, _LONG_PATTERN) or self._match(tokens, raw, _SHORT_PATTERN)
        if match is None:
            return None
        at, length = match
        tokens_after = list(tokens[at : at + min(most, LONGEST_DRAFT["ngram"])])
        return Draft("ngram", tokens_after, [class_of_match(length + n) for n in range(len(tokens_after))])

    def _text(self, stream: Stream) -> tuple[array[int], bytearray]:
        tokens, raw = self._texts.setdefault(stream, (array("i"), bytearray()))
        new_tokens = array("i", stream.tokens[len(tokens) :])
        tokens.extend(new_tokens)
        raw += new_tokens.tobytes()
        return tokens, raw

    def _match(self, tokens: array[int], raw: bytearray, size: int) -> tuple[int, int] | None:
        """Return the end and length of the longest match among recent copies of the last `size` tokens."""
        width = tokens.itemsize
        pattern = raw[-size * width :]
        if len(tokens) <= size:
            return None
        best: tuple[int, int] | None = None
        stop = len(raw) - 1
        for _ in range(_MATCHES_TRIED):
            at = raw.rfind(pattern, 0, stop)
            if at < 0:
                break
            stop = at + len(pattern) - 1
            if at % width:
                continue
            end = at // width + size
            length = size + _common_suffix(tokens, end - size, len(tokens) - size)
            if best is None or length > best[1]:
                best = end, length
        return best

    def forget(self, stream: Stream) -> None:
        """Forget a stream that has ended or whose tokens have changed."""
        self._texts.pop(stream, None)


def _common_suffix(tokens: Sequence[int], one: int, other: int) -> int:
    """Return how many tokens match when going backwards from two positions."""
    n = 0
    while n < min(one, _LONGEST_MATCH) and tokens[one - 1 - n] == tokens[other - 1 - n]:
        n += 1
    return n
