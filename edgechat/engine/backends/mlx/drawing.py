"""Choosing a token where the logits are: `engine/sampling.py` once more, as a graph of MLX.

To fetch a row of logits would end the pipeline in which a GPU computes one token while Python lays out the
next one. The filters, their order and the random number are the host's, so the token is, too (near-ties
aside: here it is computed in 32 bits).
"""

from __future__ import annotations

import mlx.core as mx

from edgechat.engine.types import Sampling

_BELOW_ONE = 1 - 2**-24
BROKEN = -1
"""In place of a token where the logits are no numbers."""


def draw(logits: mx.array, sampling: Sampling, number: float) -> mx.array:
    """Return the token [] that a number from 0 to 1 falls upon, or BROKEN.

    logits: a row [n_vocab]. Penalties are not among the filters: they look at tokens that only the host has.
    """
    if sampling.temperature <= 0:
        token, highest = logits.argmax(), logits.max()
    else:
        token, highest = _sample(logits, sampling, number)
    # A NaN anywhere comes out as the maximum.
    return mx.where(mx.isfinite(highest), token.astype(mx.int32), BROKEN)


def _sample(logits: mx.array, sampling: Sampling, number: float) -> tuple[mx.array, mx.array]:
    """Return a token and the highest logit. Every operation counts here: each is a kernel of its own."""
    highest = logits.max()
    ids, values = _candidates(logits, sampling)
    weights = mx.exp(values - highest)
    kept: mx.array | None = None  # filters keep a head of the candidates, one at least
    if sampling.top_p < 1:
        kept = (mx.cumsum(weights) < sampling.top_p * weights.sum()).sum() + 1
    if sampling.min_p > 0:
        likely = (weights >= sampling.min_p).sum()
        kept = likely if kept is None else mx.minimum(kept, likely)
    chances = weights ** (1 / sampling.temperature)
    if kept is not None:
        chances = mx.where(mx.arange(len(weights)) < kept, chances, 0.0)
    if ids is not None:
        order = mx.argsort(ids)
        ids, chances = ids[order], chances[order]
    reached = mx.cumsum(chances)
    # Not 1, to which 32 bits would round it: nothing lies behind the end.
    at = mx.minimum((reached <= min(number, _BELOW_ONE) * reached[-1]).sum(), len(weights) - 1)
    return (at if ids is None else ids[at]), highest


def _candidates(logits: mx.array, sampling: Sampling) -> tuple[mx.array | None, mx.array]:
    """Return ids and logits of what is chosen among, the likeliest first; ids None: all, in their order."""
    n = len(logits)
    if 0 < sampling.top_k < n:
        ids = mx.argpartition(logits, n - sampling.top_k)[n - sampling.top_k :]
        values = logits[ids]
        order = mx.argsort(-values)
        return ids[order], values[order]
    if sampling.top_p >= 1 and sampling.min_p <= 0:
        return None, logits
    ids = mx.argsort(-logits)
    return ids, logits[ids]
