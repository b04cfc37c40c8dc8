"""A small model of the same vocabulary as a drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgechat.base.errors import EdgechatError
from edgechat.engine.backends.base import Backend, BatchPart, CacheFull
from edgechat.engine.backends.logits import Logits
from edgechat.engine.kv.prefix_cache import PrefixCache, Rent, common_prefix
from edgechat.engine.kv.slots import Slot
from edgechat.engine.scheduling.draft_sources import Source
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.round_drafter import DraftRequest, RoundDrafter
from edgechat.planner.plan import LoadPlan


@dataclass(slots=True)
class _StreamState:
    """How much of a stream the small model has read."""

    slot: Slot
    n_read: int
    """Tokens of the stream in its cache ..."""
    drafted: list[int] = field(default_factory=list)
    """... and behind them those that it had drafted."""


class ModelDrafter(RoundDrafter):
    """A small model beside the target, with a cache of its own."""

    source: Source = "model"

    def __init__(self, backend: Backend, n_vocab: int) -> None:
        """n_vocab: tokens that the target knows."""
        super().__init__(backend.vocabulary, n_vocab)
        self.cache = PrefixCache(backend)
        self.longest = backend.context
        """Tokens of a stream that it can look back on."""
        self._backend = backend
        self._states: dict[Stream, _StreamState] = {}

    def warm_up(self, token: Sequence[int], *, whole: bool) -> float:
        """Decode one token several times and return the shortest time: the first pages are cold.

        whole: a full batch before it. Raises DecodeFailed or CacheFull.
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
        """Return how many tokens of a stream it has yet to read."""
        state = self._states.get(stream)
        if state is None:
            return len(stream.tokens) - self.cache.best(stream.tokens, len(stream.tokens) - 1)[1]
        return len(stream.tokens) - state.n_read - common_prefix(state.drafted, stream.tokens[state.n_read :])

    def read(self, stream: Stream, n_tokens: int) -> bool:
        """Read so many more tokens of a stream, all but the last one; False where there is no room."""
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
        """Return the requests that have a slot, and whose unread tokens fit into one call together."""
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
        """Return its state, with nothing in the cache that is not in the stream; None without a free slot."""
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
        """Decode a batch; None if there is no room for it even without idle sequences."""
        n_decoded = sum(part.n_logits for part in parts)
        self.cache.charge(n_decoded, sum(len(part.tokens) for part in parts) - n_decoded)
        while True:
            try:
                return self._backend.decode(parts)
            except CacheFull:
                if not self.cache.evict():
                    return None

    def forget(self, stream: Stream) -> None:
        """Forget a stream that has ended or has other tokens now; its cache stays for the next turn."""
        state = self._states.pop(stream, None)
        if state is not None:
            self.cache.release(state.slot)

    def forget_chat(self, chat: str) -> None:
        """Keep nothing of a conversation."""
        self.cache.forget(chat)

    def close(self) -> None:
        """Free the small model."""
        self._backend.close()


def load_draft(
    plan: LoadPlan | None, target: Backend, open_backend: Callable[[LoadPlan], Backend]
) -> tuple[ModelDrafter | None, str]:
    """Return the drafter, or None and why there is none: without a draft model a chat goes on."""
    if plan is None:
        return None, ""
    try:
        backend = open_backend(plan)
    except EdgechatError as error:
        return None, f"The draft model {plan.model_name} is not used. {error.message}"
    problem = target.vocabulary.misfit(backend.vocabulary)
    # It computes a token at a time, and may have to go back over several calls.
    if not problem and (not backend.rolls_back or backend.capabilities.recomputes):
        problem = "its state cannot undo a rejected draft"
    if not problem and backend.context < target.context:
        problem = f"its context is {backend.context} tokens, not {target.context}"
    if problem:
        backend.close()
        return None, f"{plan.model_name} cannot be used as a draft model: {problem}."
    drafter = ModelDrafter(backend, target.vocabulary.size)
    drafter.cache.rent = Rent.of(plan)
    return drafter, ""
