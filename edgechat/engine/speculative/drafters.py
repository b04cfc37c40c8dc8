"""Who guesses: a small model of the same vocabulary, and the n-grams of the conversation itself."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgechat.base.errors import EdgechatError, SchemaError
from edgechat.engine.backends.base import Backend, BatchPart, CacheFull, Logits
from edgechat.engine.kv.prefix_cache import PrefixCache, Slot, common_prefix
from edgechat.engine.sampling import top_ids
from edgechat.engine.scheduling.draft import MOST, Draft
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.acceptance import class_of_match, class_of_probability
from edgechat.planner.plan import LoadPlan

_LONG, _SHORT = 4, 2
"""Tokens of the pattern that is looked for, and of the one that is looked for where that is not found."""
_LOOKS = 8
"""Places that are looked at for the longest match, the latest first."""
_LONGEST_MATCH = 32
_TOP = 10
"""Tokens among which a small model's confidence is shared out."""


class NgramDrafter:
    """Prompt lookup (Saxena 2023): what followed the last time that these tokens were said."""

    def __init__(self) -> None:
        self._said: dict[Stream, tuple[array[int], bytearray]] = {}

    def draft(self, stream: Stream, most: int) -> Draft | None:
        """Return what may come next, `most` tokens at the most; None where nothing was said before."""
        tokens, raw = self._text(stream)
        found = self._latest(tokens, raw, _LONG) or self._latest(tokens, raw, _SHORT)
        if found is None:
            return None
        at, length = found
        guessed = list(tokens[at : at + min(most, MOST["ngram"])])
        return Draft("ngram", guessed, [class_of_match(length + n) for n in range(len(guessed))])

    def _text(self, stream: Stream) -> tuple[array[int], bytearray]:
        tokens, raw = self._said.setdefault(stream, (array("i"), bytearray()))
        more = array("i", stream.tokens[len(tokens) :])
        tokens.extend(more)
        raw += more.tobytes()
        return tokens, raw

    def _latest(self, tokens: array[int], raw: bytearray, size: int) -> tuple[int, int] | None:
        """Return what follows the longest of the latest matches of the last `size` tokens, and its length."""
        width = tokens.itemsize
        pattern = raw[-size * width :]
        if len(tokens) <= size:
            return None
        best: tuple[int, int] | None = None
        stop = len(raw) - 1
        for _ in range(_LOOKS):
            at = raw.rfind(pattern, 0, stop)
            if at < 0:
                break
            stop = at + len(pattern) - 1
            if at % width:
                continue
            end = at // width + size
            length = size + _alike(tokens, end - size, len(tokens) - size)
            if best is None or length > best[1]:
                best = end, length
        return best

    def forget(self, stream: Stream) -> None:
        """The stream has ended, or has other tokens now."""
        self._said.pop(stream, None)


def _alike(tokens: Sequence[int], one: int, other: int) -> int:
    """Return how many tokens before two places are the same."""
    n = 0
    while n < min(one, _LONGEST_MATCH) and tokens[one - 1 - n] == tokens[other - 1 - n]:
        n += 1
    return n


@dataclass(slots=True)
class _Place:
    """Where the small model has got to with a stream."""

    slot: Slot
    n_said: int
    """Tokens of the stream in its cache ..."""
    guessed: list[int] = field(default_factory=list)
    """... and behind them those that were only guessed then."""


class ModelDrafter:
    """A small model beside the target, with a cache of its own."""

    def __init__(self, backend: Backend, n_vocab: int) -> None:
        """n_vocab: tokens that the target knows; a draft may have some more, or fewer."""
        self._backend = backend
        self._cache = PrefixCache(backend)
        self._n_vocab = min(n_vocab, backend.vocabulary.size)
        self._places: dict[Stream, _Place] = {}

    def warm_up(self, token: Sequence[int], *, whole: bool) -> float:
        """Compute a token some times; return the least seconds that it took: the first pages are cold.

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

    @property
    def cache(self) -> PrefixCache:
        """What it has read."""
        return self._cache

    @property
    def longest(self) -> int:
        """Tokens of a stream that it can look back on."""
        return self._backend.context

    def n_behind(self, stream: Stream) -> int:
        """Return how many tokens of a stream it has yet to read."""
        place = self._places.get(stream)
        if place is None:
            return len(stream.tokens) - self._cache.best(stream.tokens, len(stream.tokens) - 1)[1]
        return len(stream.tokens) - place.n_said - common_prefix(place.guessed, stream.tokens[place.n_said :])

    def read(self, stream: Stream, n_tokens: int) -> bool:
        """Read so many more tokens of a stream, all but the last one; False where there is no room."""
        place = self._place(stream)
        if place is None:
            return False
        stop = min(place.n_said + n_tokens, len(stream.tokens) - 1)
        while place.n_said < stop:
            tokens = stream.tokens[place.n_said : min(stop, place.n_said + self._backend.n_batch)]
            if self._decode([BatchPart(place.slot.id, place.n_said, tokens, 0)]) is None:
                return False
            self._cache.extend(place.slot, tokens)
            place.n_said += len(tokens)
        return True

    def draft(self, wanted: Sequence[DraftRequest]) -> int:
        """Draft for several streams at once, a token of each in every round. Returns the rounds.

        Each draft grows until it is as long as wanted or its `goes_on` says no. Raises DecodeFailed.
        """
        growing = self._within_a_batch(wanted)
        rounds = 0
        while growing:
            parts = [self._part(one) for one in growing]
            rows = self._decode(parts)
            if rows is None:
                break
            rounds += 1
            for one, part in zip(growing, parts, strict=True):
                place = self._places[one.stream]
                self._cache.extend(place.slot, part.tokens)
                place.n_said, place.guessed = len(one.stream.tokens), list(one.draft.tokens)
            growing = [
                one
                for one, row in zip(growing, rows, strict=True)
                if self._guess(one, row[: self._n_vocab]) and self._goes_on(one)
            ]
        return rounds

    def _within_a_batch(self, wanted: Sequence[DraftRequest]) -> list[DraftRequest]:
        """Return those who have a place and whose unread tokens fit into one call, with the others'."""
        found: list[DraftRequest] = []
        left = self._backend.n_batch
        for one in wanted:
            place = self._place(one.stream)
            if place is None or len(found) == self._backend.n_outputs_max:
                continue
            n_unread = len(one.stream.tokens) - place.slot.length
            if n_unread <= left:
                found.append(one)
                left -= n_unread
        return found

    def _goes_on(self, one: DraftRequest) -> bool:
        """Say whether a draft grows: nothing follows what ends a reply."""
        tokens = one.draft.tokens
        ends = self._backend.vocabulary.is_end(tokens[-1])
        return len(tokens) < one.most and not ends and one.goes_on(one.draft.confidence)

    def _part(self, one: DraftRequest) -> BatchPart:
        place = self._places[one.stream]
        start = place.slot.length
        said = one.stream.tokens[start:]
        return BatchPart(place.slot.id, start, said or one.draft.tokens[-1:], 1)

    def _guess(self, one: DraftRequest, row: Logits) -> bool:
        """Add the next token to a draft, chosen from its logits as the target chooses from its own.

        False where it is not worth it. That is decided by how sure the draft is, before a token is drawn: to
        leave out some that were drawn would make the others likelier.
        """
        sampler, draft = one.stream.sampler, one.draft
        window = max(sampler.sampling.penalty_window, 0)
        recent = [*one.stream.tokens[-window:], *draft.tokens] if window else []
        try:
            drawn = sampler.distribution(row, recent, [*one.stream.constrained_reply, *draft.tokens])
        except SchemaError:  # the target will say so too, or knows better
            return False
        sure = class_of_probability(float(drawn[1].max()) if len(drawn[0]) > 1 else _confidence(row))
        if not one.takes([*draft.confidence, sure]):
            return False
        if sampler.is_deterministic:
            token = sampler.predict(drawn, len(draft.tokens))
        else:
            token = sampler.draw(drawn)
            draft.distributions = [*(draft.distributions or []), drawn]
        draft.tokens.append(token)
        draft.confidence.append(sure)
        return True

    def _place(self, stream: Stream) -> _Place | None:
        """Return where it has got to, with nothing in the cache that was not said; None without a room."""
        place = self._places.get(stream)
        if place is None:
            if not self._cache.has_free_slot:
                return None
            slot, n = self._cache.seat(stream.tokens)
            slot.chat = stream.request.chat
            place = self._places[stream] = _Place(slot, n)
        if place.guessed:
            place.n_said += common_prefix(place.guessed, stream.tokens[place.n_said :])
            place.guessed = []
        keep = min(place.n_said, len(stream.tokens) - 1)
        if keep < place.slot.length and not self._cache.truncate(place.slot, keep):
            self._cache.clear(place.slot)
        place.n_said = place.slot.length
        return place

    def _decode(self, parts: Sequence[BatchPart]) -> Logits | None:
        """Compute a batch; None where there is no room for it even without what is idle."""
        while True:
            try:
                return self._backend.decode(parts)
            except CacheFull:
                if not self._cache.evict():
                    return None

    def forget(self, stream: Stream) -> None:
        """The stream has ended, or has other tokens now. What was read of it stays for the next turn."""
        place = self._places.pop(stream, None)
        if place is not None:
            self._cache.release(place.slot)

    def forget_chat(self, chat: str) -> None:
        """Keep nothing of a conversation."""
        self._cache.forget(chat)

    def close(self) -> None:
        """Free the small model."""
        self._backend.close()


@dataclass(slots=True)
class DraftRequest:
    """A draft that a small model is asked for."""

    stream: Stream
    draft: Draft
    most: int
    takes: Callable[[Sequence[int]], bool]
    """Whether a token is worth verifying, behind others, by the classes of all of them."""
    goes_on: Callable[[Sequence[int]], bool]
    """Whether to find out what comes behind tokens of these classes."""


def _confidence(row: Logits) -> float:
    """Return the probability of the likeliest token, among the ten likeliest."""
    highest = row[top_ids(row, _TOP)].astype(np.float64)
    return float(1 / np.exp(highest - highest[0]).sum())


def load_draft(
    plan: LoadPlan | None, target: Backend, make: Callable[[LoadPlan], Backend]
) -> tuple[ModelDrafter | None, str]:
    """Return the drafter, or None and why there is none: nobody is kept from chatting by a draft.

    make: loads a plan.
    """
    if plan is None:
        return None, ""
    try:
        backend = make(plan)
    except EdgechatError as error:
        return None, f"The draft model {plan.model_name} is not used. {error.message}"
    why = target.vocabulary.misfit(backend.vocabulary)
    # It computes a token at a time, and may have to go back over several calls.
    if not why and (not backend.rolls_back or backend.capabilities.recomputes):
        why = "its state cannot undo a rejected draft"
    if not why and backend.context < target.context:
        why = f"its context is {backend.context} tokens, not {target.context}"
    if why:
        backend.close()
        return None, f"{plan.model_name} cannot be used as a draft model: {why}."
    return ModelDrafter(backend, target.vocabulary.size), ""
