"""The mean Kullback-Leibler divergence of a model's predictions from another one's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_BLOCK = 1 << 22
"""Logits that are worked on at once."""


def mean_divergence(base: Floats, logits: Floats) -> float:
    """Return the mean over rows of KL(base || logits) in nats; both are logits [n, n_vocab]."""
    step = max(1, _BLOCK // base.shape[1])
    total = 0.0
    for start in range(0, len(base), step):
        p = _log_softmax(base[start : start + step])
        q = _log_softmax(logits[start : start + step])
        total += float((np.exp(p) * (p - q)).sum(dtype=np.float64))
    return total / len(base)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return result
