"""Perplexity of a model on a text, and divergence from another model, computed from logits using only numpy.

Both are computed as in llama.cpp's tools/perplexity, including the standard errors, which assume that tokens
are independent. That is not quite true of real text.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import cast

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint16]

NLL, BASE_NLL, KLD, SAME_TOP = range(4)
"""Indices of the rows that `token_scores` returns."""
HEAD = 4
"""Number of 16-bit words that precede the codes in a row.

They hold the scale and the lowest log probability, each as a 32-bit float.
"""
_BLOCK = 1 << 20
"""Number of bytes of logits that each thread processes at a time: few enough to fit in the CPU cache."""
_DEEPEST = 16.0
"""Range of the codes, in nats below the most likely token. Anything lower is clamped."""
_ENOUGH = 10
"""Number of tokens up to which no standard error is given, as in llama.cpp."""
_TAIL = 0.999


class Estimate(msgspec.Struct, frozen=True):
    """A value and its standard error."""

    value: float
    error: float


class Divergences(msgspec.Struct, frozen=True, kw_only=True):
    """How far a model's predictions diverge from the base's, in nats."""

    mean: Estimate
    median: Estimate
    tail: Estimate
    """The 99.9th percentile of the divergence."""
    same_top: Estimate
    """Fraction of positions where both models rank the same token first."""
    log_ratio: Estimate
    """Logarithm of the ratio of the model's perplexity to the base's."""
    base_perplexity: Estimate


class TextFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the scores on a text."""

    n_tokens: int
    perplexity: Estimate
    divergence: Divergences | None = None
    """The divergence from the base, or None if there was no base."""


def token_scores(
    logits: Floats, targets: npt.NDArray[np.int32], base: Floats | Codes | None, pool: Executor
) -> Floats:
    """Return the scores [4, n] of the target tokens, in nats; see NLL, BASE_NLL, KLD and SAME_TOP.

    logits: [n, n_vocab]. base: the base's logits for the same tokens, rows from a base file, or None to
    compare the model with itself.
    """
    scores = np.empty((4, len(targets)), np.float32)
    n_rows = max(1, _BLOCK // logits[:1].nbytes)

    def block(start: int) -> None:
        part = slice(start, start + n_rows)
        scores[:, part] = _block(logits[part], targets[part], None if base is None else base[part])

    list(pool.map(block, range(0, len(targets), n_rows)))
    return scores


def mean_divergence(base: Floats, logits: Floats) -> float:
    """Return KL(base || logits), in nats, averaged over all rows. Both arguments are logits [n, n_vocab]."""
    targets = np.zeros(len(logits), np.int32)  # the divergence does not depend on the target tokens
    with ThreadPoolExecutor() as pool:
        return float(token_scores(logits, targets, base, pool)[KLD].mean(dtype=np.float64))


def _block(
    logits: Floats, targets: npt.NDArray[np.int32], base: Floats | Codes | None
) -> npt.NDArray[np.float64]:
    places = np.arange(len(targets))
    top, weights, total, log_total = _softmax(logits)
    nll = log_total - logits[places, targets]
    if base is None:
        return np.stack([nll, nll, np.zeros_like(nll), np.ones_like(nll)])
    if base.dtype == np.uint16:
        codes = cast(Codes, base)
        base_top = codes[:, HEAD : HEAD + logits.shape[1]].argmax(1)
        logs = decoded(codes, logits.shape[1])
        base_nll = -logs[places, targets].astype(np.float64)
        np.exp(logs, out=weights)
        weights *= logs > -_DEEPEST  # llama.cpp skips the rest; multiplying is faster than assigning
        mass = weights.sum(1).astype(np.float64)
        # Shift by log_total in float32, then by the remainder in float64, to avoid cancellation errors.
        shift = log_total.astype(np.float32)
        logs -= logits
        logs += shift[:, None]
        differences, rest = logs, mass * (log_total - shift)
    else:
        base_top, weights, total, base_log_total = _softmax(cast(Floats, base), out=weights)
        base_nll = base_log_total - base[places, targets]
        weights /= total[:, None]
        differences, rest = base - logits, log_total - base_log_total
    differences *= weights
    kld = differences.sum(1).astype(np.float64) + rest
    return np.stack([nll, base_nll, kld, top == base_top])


def _softmax(
    logits: Floats, out: Floats | None = None
) -> tuple[npt.NDArray[np.intp], Floats, Floats, npt.NDArray[np.float64]]:
    """Return, for each row, the most likely token, exp(logits - maximum), its sum, and the log-sum-exp."""
    top = logits.argmax(1)
    highest = logits[np.arange(len(top)), top]
    weights = np.subtract(logits, highest[:, None], out=out)
    np.exp(weights, out=weights)
    total = weights.sum(1)
    return top, weights, total, highest + np.log(total.astype(np.float64))


def coded(logits: Floats, pool: Executor) -> Codes:
    """Encode log probabilities as 16-bit rows for a base file: [n, HEAD + n_vocab rounded up to even]."""
    n, n_vocab = logits.shape
    rows = np.zeros((n, row_codes(n_vocab)), np.uint16)
    n_rows = max(1, _BLOCK // logits[:1].nbytes)

    def block(start: int) -> None:
        part = slice(start, start + n_rows)
        _, steps, _, log_total = _softmax(logits[part])
        highest, least = logits[part].max(1), logits[part].min(1)
        least = np.maximum(least, highest - np.float32(_DEEPEST))
        scale = (highest - least) / np.float32(65535)
        head = np.stack([scale, (least - log_total).astype(np.float32)], axis=1)
        rows[part, :HEAD] = head.view(np.uint16)
        np.subtract(logits[part], least[:, None], out=steps)
        steps *= np.divide(np.float32(1), scale, where=scale > 0, out=np.zeros_like(scale))[:, None]
        np.clip(np.rint(steps, out=steps), 0, 65535, out=steps)
        rows[part, HEAD : HEAD + n_vocab] = steps

    list(pool.map(block, range(0, n, n_rows)))
    return rows


def decoded(rows: Codes, n_vocab: int) -> Floats:
    """Decode rows of a base file into log probabilities [n, n_vocab]."""
    head = np.ascontiguousarray(rows[:, :HEAD]).view(np.float32)
    logs = rows[:, HEAD : HEAD + n_vocab].astype(np.float32)
    logs *= head[:, :1]
    logs += head[:, 1:]
    return logs


def row_codes(n_vocab: int) -> int:
    """Return the number of 16-bit words in a row of a base file."""
    return HEAD + n_vocab + n_vocab % 2


def summary(scores: Floats, *, compared: bool) -> TextFigures:
    """Summarize the scores [4, n] on a text. compared: whether there was a base to compare with."""
    nll, base_nll, kld, same = scores.astype(np.float64)
    log_perplexity = _mean(nll)
    perplexity = _exp(log_perplexity)
    if not compared:
        return TextFigures(n_tokens=len(nll), perplexity=perplexity)
    share = float(same.mean())
    return TextFigures(
        n_tokens=len(nll),
        perplexity=perplexity,
        divergence=Divergences(
            mean=_mean(kld),
            median=_quantile(kld, 0.5),
            tail=_quantile(kld, _TAIL),
            same_top=Estimate(share, math.sqrt(share * (1 - share) / max(1, len(same) - 1))),
            log_ratio=_mean(nll - base_nll),  # its error takes the covariance into account
            base_perplexity=_exp(_mean(base_nll)),
        ),
    )


def _mean(values: npt.NDArray[np.float64]) -> Estimate:
    n = len(values)
    error = math.sqrt(float(values.var()) / (n - 1)) if n > _ENOUGH else 0.0
    return Estimate(float(values.mean()), error)


def _exp(estimate: Estimate) -> Estimate:
    value = math.exp(min(estimate.value, 700.0))
    return Estimate(value, value * estimate.error)


def _quantile(values: npt.NDArray[np.float64], share: float) -> Estimate:
    """Return a quantile and its standard error.

    The error is half the distance between the order statistics one standard error to either side.
    """
    spread = math.sqrt(share * (1 - share) / len(values))
    around = [max(0.0, share - spread), share, min(1.0, share + spread)]
    below, value, above = np.quantile(values, around)
    return Estimate(float(value), float(above - below) / 2)
