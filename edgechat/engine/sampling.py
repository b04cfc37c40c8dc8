"""Sampling for all backends: turns a row of logits into a distribution, and the distribution into a token.

Filters run in llama.cpp's order: penalties, top-k, top-p, min-p, temperature. Tokens that a grammar forbids
are removed before top-k. Each filter keeps only the N likeliest tokens, so the strictest filter decides how
many remain, and only tokens that could be among those are sorted.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import BadRequest, SchemaError
from edgechat.engine.backends.base import Distribution, Ids, Logits, Probabilities, broken_logits
from edgechat.engine.types import Sampling

_COLUMNS = 2048
_BLOCK = 32_768
"""Number of logits to sum at a time; temporary copies of long rows would page in new memory every time."""


class TokenConstraint(Protocol):
    """A reply's grammar. `reply` holds the reply's tokens so far. Methods raise SchemaError."""

    def mask(self, reply: Sequence[int], /) -> npt.NDArray[np.bool_]:
        """Return a mask [n_vocab] of the tokens that may come next."""
        ...

    def allows(self, reply: Sequence[int], tokens: Sequence[int], /) -> int:
        """Return how many of `tokens` may come next, in order."""
        ...

    def is_complete(self, reply: Sequence[int], /) -> bool:
        """Return True if no further token is allowed."""
        ...


class Sampler:
    """Samples the tokens of one request, using one random number per chosen token.

    The `reply` parameters (the reply's tokens so far) matter only with a constraint.
    """

    def __init__(self, sampling: Sampling, constraint: TokenConstraint | None = None) -> None:
        self.sampling = sampling
        self.constraint = constraint
        bias = sorted(sampling.bias)
        self._biased = np.array([token for token, _ in bias], np.intp)
        self._bias = np.array([value for _, value in bias], np.float32)
        self._random = np.random.default_rng(sampling.seed)
        self._upcoming: deque[float] = deque()

    @property
    def is_deterministic(self) -> bool:
        """Whether the same logits always give the same token, as they do with a seed or at temperature 0."""
        return self.sampling.seed is not None or self.sampling.temperature <= 0

    @property
    def needs_logits(self) -> bool:
        """Whether penalties, a bias or a grammar prevent the backend from sampling on the device."""
        return _penalises(self.sampling) or bool(self.sampling.bias) or self.constraint is not None

    @property
    def n_candidates(self) -> int:
        """How many of the highest logits are needed; 0 means all of them."""
        if self.needs_logits:
            return 0
        return 1 if self.sampling.temperature <= 0 else max(0, self.sampling.top_k)

    @property
    def number(self) -> float:
        """The random number for the next token. Call `advance` after using it."""
        return self._random_number(0)

    def advance(self) -> None:
        """Discard `number` once it has been used to draw a token."""
        self._upcoming.popleft()

    def distribution(self, logits: Logits, recent: Sequence[int], reply: Sequence[int] = ()) -> Distribution:
        """Return the distribution of the next token, given a row of logits [n_vocab], which is not modified.

        recent: the preceding tokens, newest last. Raises DecodeFailed for NaN or infinite logits, and
        SchemaError if no token satisfies the grammar.
        """
        logits = self._with_penalties(logits, recent)
        constraint, samples = self.constraint, self.sampling.temperature > 0
        if constraint is None and samples:  # `_filtered` checks the logits, so a long row is read only once
            return _filtered(logits, self.sampling)
        likeliest = int(logits.argmax())
        _check(logits[likeliest])
        if constraint is None or (not samples and constraint.allows(reply, [likeliest])):
            return np.array([likeliest]), np.ones(1)
        return _allowed(logits, constraint.mask(reply)[: len(logits)], self.sampling)

    def _with_penalties(self, logits: Logits, recent: Sequence[int]) -> Logits:
        """Return the logits with bias and penalties applied, or the row itself if there are none."""
        window = recent[-self.sampling.penalty_window :] if _penalises(self.sampling) else []
        if not (window or len(self._bias)):
            return logits
        logits = logits.copy()
        # A draft model's vocabulary may be smaller than its target's.
        n = int(np.searchsorted(self._biased, len(logits)))
        np.add.at(logits, self._biased[:n], self._bias[:n])
        if window:
            _penalise(logits, window, self.sampling)
        return logits

    def choose(self, logits: Logits, recent: Sequence[int], reply: Sequence[int] = ()) -> int:
        """Sample a token; see `distribution`."""
        number = self.number
        self.advance()
        if self.constraint is None and _keeps_all(self.sampling, len(logits)):
            return _pick_of_all(self._with_penalties(logits, recent), self.sampling.temperature, number)
        return _pick(self.distribution(logits, recent, reply), number)

    def allowed(self, reply: Sequence[int], tokens: Sequence[int]) -> int:
        """Return how many of `tokens`, in order, the grammar allows: all of them if there is no grammar."""
        if self.constraint is None:
            return len(tokens)
        try:
            return self.constraint.allows(reply, tokens)
        except SchemaError:  # will be raised again when the next token is chosen
            return 0

    def predict(self, distribution: Distribution, ahead: int) -> int:
        """Return the token that `choose` would draw from a distribution `ahead` tokens after the next one."""
        return _pick(distribution, self._random_number(ahead))

    def draw(self, distribution: Distribution) -> int:
        """Return a random token, drawn independently of the choices that `choose` makes."""
        return _pick(distribution, self._random.random())

    def verify(
        self,
        logits: Logits,
        recent: Sequence[int],
        token: int,
        drafted: Distribution,
        reply: Sequence[int] = (),
    ) -> int:
        """Return `token`, which was drawn from `drafted`, or a replacement, as if `choose` had drawn it.

        This is rejection sampling (Leviathan et al. 2023, "Fast Inference from Transformers via Speculative
        Decoding"): accept with probability p/q, otherwise draw from max(0, p - q).
        """
        ids, p = self.distribution(logits, recent, reply)
        q = _probabilities_of(ids, drafted)
        at = np.flatnonzero(ids == token)
        if len(at) and accepts(float(p[at[0]]), float(q[at[0]]), self._random.random()):
            return token
        rest = np.maximum(p - q, 0.0)
        left = rest.sum()
        return self.draw((ids, rest / left if left > 0 else p))

    def _random_number(self, ahead: int) -> float:
        while len(self._upcoming) <= ahead:
            self._upcoming.append(self._random.random())
        return self._upcoming[ahead]


def accepts(p: float, q: float, number: float) -> bool:
    """Return True if a drafted token is accepted.

    p, q: its probability according to the target and the draft. number: a random number from 0 to 1.
    """
    return number * q < p


def _pick(distribution: Distribution, number: float) -> int:
    """Return the token that a number from 0 to 1 selects, with tokens ordered by id.

    If tokens were ordered by probability, the order of near-ties would depend on the batch size, and the same
    seed could give different results.
    """
    ids, probabilities = distribution
    if len(ids) == 1:
        return int(ids[0])
    if (ids[1:] < ids[:-1]).any():
        order = ids.argsort()
        ids, probabilities = ids[order], probabilities[order]
    cumulative = probabilities.cumsum()
    at = int(cumulative.searchsorted(number * cumulative[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def _pick_of_all(logits: Logits, temperature: float, number: float) -> int:
    """Pick a token from all logits, as `_pick` does but one block at a time. Raises DecodeFailed."""
    highest = logits.max()
    _check(highest)

    def cumulative(start: int) -> Probabilities:
        block = logits[start : start + _BLOCK].astype(np.float64)
        weights: Probabilities = np.exp((block - highest) / temperature)
        return weights.cumsum()

    starts = range(0, len(logits), _BLOCK)
    ends = np.array([cumulative(start)[-1] for start in starts]).cumsum()
    wanted = number * ends[-1]
    at = min(int(ends.searchsorted(wanted, side="right")), len(ends) - 1)
    inside = cumulative(starts[at]) + (ends[at - 1] if at else 0.0)  # ends exactly at ends[at]
    return starts[at] + min(int(inside.searchsorted(wanted, side="right")), len(inside) - 1)


def _probabilities_of(ids: Ids, distribution: Distribution) -> Probabilities:
    others, probabilities = distribution
    order = np.argsort(others)
    at = order[np.minimum(np.searchsorted(others, ids, sorter=order), len(others) - 1)]
    return np.where(others[at] == ids, probabilities[at], 0.0)


def _allowed(logits: Logits, mask: npt.NDArray[np.bool_], sampling: Sampling) -> Distribution:
    """Return the distribution over allowed tokens. Raises SchemaError if all of them have probability 0."""
    allowed = None
    if np.count_nonzero(mask) > len(logits) // 2:
        logits = np.where(mask, logits, np.float32(-np.inf))
    else:  # leaves fewer tokens to sort
        allowed = np.flatnonzero(mask)
        logits = logits[allowed]
    if not len(logits) or not np.isfinite(logits.max()):
        raise SchemaError(
            "The model assigns no probability to any token that the schema allows.",
            hint="Change the schema, or choose another model.",
        )
    ids, probabilities = _filtered(logits, sampling)
    return ids if allowed is None else allowed[ids], probabilities


def _filtered(logits: Logits, sampling: Sampling) -> Distribution:
    """Return the distribution after all filters. Raises DecodeFailed for NaN or infinite logits."""
    if sampling.temperature <= 0:
        return np.array([int(logits.argmax())]), np.ones(1)
    ids, weights = _filtered_ids(logits, sampling)
    weights /= sampling.temperature
    np.exp(weights, out=weights)
    weights /= weights.sum()
    return ids, weights


def logprobs(logits: Logits, token: int, others: int) -> tuple[float, list[tuple[int, float]]]:
    """Return a token's logprob and the `others` likeliest tokens with their logprobs, before filtering."""
    highest = logits.max()
    total = float(highest) + math.log(_total_weight(logits, highest))
    likeliest = top_ids(logits, others) if others > 0 else np.empty(0, np.intp)
    return float(logits[token]) - total, [(int(other), float(logits[other]) - total) for other in likeliest]


def check_bias(sampling: Sampling, n_vocab: int) -> None:
    """Raise BadRequest if a bias is not finite or refers to an unknown token."""
    for token, value in sampling.bias:
        if not 0 <= token < n_vocab:
            raise BadRequest(
                f"logit_bias contains the unknown token {token}; the model's tokens are 0 to {n_vocab - 1}."
            )
        if not math.isfinite(value):
            raise BadRequest(f"The bias of token {token} is not a number.")


def _keeps_all(sampling: Sampling, n_vocab: int) -> bool:
    """Return True if no filter applies, so that tokens are drawn from the whole vocabulary."""
    filters = 0 < sampling.top_k < n_vocab or sampling.top_p < 1 or sampling.min_p > 0
    return sampling.temperature > 0 and not filters


def _penalises(sampling: Sampling) -> bool:
    changes = sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
    return bool(changes) and sampling.penalty_window > 0


def _penalise(logits: Logits, window: Sequence[int], sampling: Sampling) -> None:
    times = Counter(token for token in window if token < len(logits))  # higher ids stand for media
    seen = np.fromiter(times, np.intp, len(times))
    counts = np.fromiter(times.values(), np.intp, len(times))
    values = logits[seen]
    values = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    logits[seen] = values - counts * sampling.frequency_penalty - sampling.presence_penalty


def _filtered_ids(logits: Logits, sampling: Sampling) -> tuple[Ids, Probabilities]:
    """Return the ids that pass all filters, and their logits minus the highest logit.

    They are ordered by probability, or by id if neither top-k nor top-p applies.
    """
    n_vocab = len(logits)
    if 0 < sampling.top_k < n_vocab:
        ids, below = _likeliest(logits, sampling.top_k)
        weights = np.exp(below)
        kept = _count_likely(weights, float(weights.sum()), sampling)
        return ids[:kept], below[:kept]
    highest = logits.max()
    _check(highest)
    if sampling.top_p >= 1:
        if sampling.min_p <= 0:
            below = logits.astype(np.float64)
            below -= highest
            return np.arange(n_vocab), below
        ids = np.flatnonzero(logits >= min(highest + math.log(sampling.min_p), highest))
        return ids, logits[ids].astype(np.float64) - highest
    total = _total_weight(logits, highest)
    count = 256
    while True:
        ids, below = _likeliest(logits, count)
        kept = _count_likely(np.exp(below), total, sampling)
        if kept < count or count >= n_vocab:
            return ids[:kept], below[:kept]
        count = min(8 * count, n_vocab)


def _likeliest(logits: Logits, count: int) -> tuple[Ids, Probabilities]:
    """Return the `count` likeliest ids, likeliest first, and their logits minus the highest logit."""
    ids = top_ids(logits, count)
    values = logits[ids].astype(np.float64)
    return ids, values - values[0]


def _total_weight(logits: Logits, highest: np.float32) -> float:
    """Return the sum of exp(logits - highest)."""
    blocks = (logits[at : at + _BLOCK] for at in range(0, len(logits), _BLOCK))
    return sum(float(np.exp(block - highest).sum(dtype=np.float64)) for block in blocks)


def _count_likely(weights: Probabilities, total: float, sampling: Sampling) -> int:
    """Return how many tokens top-p and min-p keep, at least 1. The weights must be in descending order."""
    kept = len(weights)
    if sampling.top_p < 1:
        kept = min(kept, int(weights.cumsum().searchsorted(sampling.top_p * total)) + 1)
    if sampling.min_p > 0:
        kept = min(kept, int(np.count_nonzero(weights >= sampling.min_p * weights[0])))
    return max(1, kept)


def top_ids(logits: Logits, count: int) -> Ids:
    """Return the ids of the `count` largest logits, largest first (all if there are fewer).

    A long row is first split into strided columns. The count-th largest of the columns' maxima is a lower
    bound on the count-th largest logit, so only columns that reach it are examined. Few numpy functions are
    called because each costs microseconds: after decoding, the CPU caches are full of the model's weights.
    Raises DecodeFailed for NaN or infinite logits.
    """
    count = min(count, len(logits))
    columns = max(_COLUMNS, 4 * count)
    strides = len(logits) // columns
    if strides < 2:
        ids = np.argpartition(logits, -count)[-count:]
        _check(logits[ids].max())
    else:
        table, rest = logits[: strides * columns].reshape(strides, columns), logits[strides * columns :]
        maxima = table.max(axis=0)
        np.maximum(maxima[: len(rest)], rest, out=maxima[: len(rest)])
        ordered = maxima.copy()
        ordered.partition(columns - count)
        _check(ordered[-count:].max())
        bound = ordered[-count]
        reaching = (maxima >= bound).nonzero()[0]
        rows, at = (table[:, reaching] >= bound).nonzero()
        ids = rows * columns + reaching[at]
        if len(of_rest := (rest >= bound).nonzero()[0]):
            ids = np.concatenate((ids, of_rest + table.size))
    return ids[(-logits[ids]).argsort(kind="stable")][:count]


def _check(highest: np.float32) -> None:
    """Raise DecodeFailed unless the highest logit is finite. It is NaN if any logit is NaN."""
    if not math.isfinite(highest):
        raise broken_logits()
