"""Quality loss caused by quantization: published figures with their sources, and measurements made here.

Each figure is the Kullback-Leibler divergence of the next-token distribution from that of the unquantized
model, in nats; 0 means no loss. All published figures come from a single model. Larger models lose less,
while newer and denser ones lose more, so the figures rank any model's quantizations but do not predict its
loss. They cannot even rank quantizations that are nearly lossless (arXiv 2606.19558).

A measurement of the file itself takes precedence, except for quality classes. The limits of these classes
suit only the published figures, since small models lose more at the same quantization.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.quants import canonical, is_mlx_bits
from edgechat.models.local.stores import fingerprint_of

LARGE = 30_000_000_000
"""Minimum number of weights for a poor quantization to be acceptable: Q2_K harms a 70B model as much as
Q3_K_M harms an 8B model.
"""
BLOCK = 256
"""Number of weights in a block of K-quants. Rows whose length is not a multiple of this get larger types, so
the model's files hardly shrink.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, with its source."""

    value: float
    source: str
    measured: bool = False
    """Whether it was measured on this machine, using the file itself."""


class QualityClass(IntEnum):
    """How close a quantization is to the unquantized model. Higher is better."""

    POOR = 1
    REDUCED = 2
    GOOD = 3
    HIGH = 4
    NEAR_LOSSLESS = 5
    REFERENCE = 6

    @property
    def label(self) -> str:
        """Name shown to users, such as 'near-lossless'."""
        return self.name.lower().replace("_", "-")


_SOURCE = "llama.cpp tools/perplexity/README.md (Llama-3-8B, wikitext-2)"
_IMATRIX = f"{_SOURCE[:-1]}, importance matrix)"
_NATIVE = "the model was released in this format: nothing is lost"

_PLAIN = {
    "F16": 0.000551,
    "Q8_0": 0.001355,
    "Q6_K": 0.005452,
    "Q5_K_M": 0.010762,
    "Q5_K_S": 0.016595,
    "Q5_1": 0.018045,
    "Q5_0": 0.022239,
    "Q4_1": 0.071683,
    "Q4_0": 0.071940,
}
_WITH_IMATRIX = {
    "Q4_K_M": 0.028152,
    "Q4_K_S": 0.031951,
    "IQ4_NL": 0.035742,
    "IQ4_XS": 0.036334,
    "Q3_K_L": 0.073077,
    "Q3_K_M": 0.084358,
    "IQ3_M": 0.102534,
    "IQ3_S": 0.111278,
    "IQ3_XS": 0.138693,
    "IQ3_XXS": 0.183625,
    "Q3_K_S": 0.199821,
    "IQ2_M": 0.325989,
    "Q2_K": 0.332223,
    "IQ2_S": 0.439197,
    "IQ2_XXS": 0.812022,
}
_NEAREST = {"8BIT": "Q8_0", "6BIT": "Q6_K", "5BIT": "Q5_1", "4BIT": "Q4_1"}
"""The most similar llama.cpp quantization for each MLX quantization.

Like MLX, Q4_1 and Q5_1 store a 16-bit scale and minimum for each block. No divergence has been published for
MLX, but MMLU-Pro scores in mlx-lm's BENCHMARKS.md confirm the order for Qwen3-4B-2507: 64.05 at bf16, 63.85
at 8 bits, 63.53 at 6, 62.38 at 5, 60.72 at 4.
"""
_LIKE = "figure for {0}, the most similar quantization; none has been published for MLX: {1}"
_LIMITS = (
    (0.002, QualityClass.REFERENCE),
    (0.006, QualityClass.NEAR_LOSSLESS),
    (0.025, QualityClass.HIGH),
    (0.040, QualityClass.GOOD),
    (0.120, QualityClass.REDUCED),
)
"""Our own limits, set at gaps between the figures. At these gaps, the perplexity of an 8B model has grown by
0.4%, 2%, 4% and 12%.
"""


def loss_of_file(quant: str | None, path: Path | None) -> Figure | None:
    """Return a file's divergence in nats, either measured here or published for its quantization.

    path: the file, if it is on this machine.
    """
    loss = measured_loss(path) if path is not None else None
    if loss is None:
        return kl_divergence(quant)
    source = f"measured on this machine against {loss.base}, ± {loss.error:.2g}, over {loss.n_tokens} tokens"
    return Figure(loss.value, source, measured=True)


def kl_divergence(quant: str | None) -> Figure | None:
    """Return the published divergence of a quantization in nats, or None if there is none.

    The figure for MXFP4 applies to gpt-oss, which was trained with it. Other models do lose something. An
    uploader's own mixture gets the figure for the most similar plain quantization.
    """
    label = _plain_label(quant)
    if label == "MXFP4":
        return Figure(0.0, _NATIVE)
    if is_mlx_bits(label):
        nearest = _NEAREST.get(label.upper())
        if nearest is None:
            return None
        return Figure(_PLAIN[nearest], _LIKE.format(nearest, _SOURCE))
    if label in _WITH_IMATRIX:
        return Figure(_WITH_IMATRIX[label], _IMATRIX)
    return Figure(_PLAIN[label], _SOURCE) if label in _PLAIN else None


def quality_class(quant: str | None) -> QualityClass | None:
    """Return the class of a quantization, or None if it is unknown."""
    if _plain_label(quant) in ("F32", "BF16"):
        return QualityClass.REFERENCE
    figure = kl_divergence(quant)
    if figure is None:
        return None
    return next((quality for limit, quality in _LIMITS if figure.value <= limit), QualityClass.POOR)


def worth_offering(header: ModelHeader, quant: str | None) -> bool:
    """Return whether this quantization of a model is worth suggesting, provided that it fits.

    Poor quantizations are not worth it for models with fewer than 30B weights. GGUF quantizations below
    Q4_K_M are not worth it for models whose rows are not a multiple of 256, because the files hardly shrink
    (gemma-3-1b is 0.69 GB at Q2_K and 0.81 GB at Q4_K_M).
    """
    figure = kl_divergence(quant)
    if figure is None:
        return True
    if header.format == "gguf" and header.embedding_length % BLOCK and figure.value > _WITH_IMATRIX["Q4_K_M"]:
        return False
    return quality_class(quant) is not QualityClass.POOR or header.n_params >= LARGE


def _plain_label(quant: str | None) -> str:
    return canonical(quant or "").removeprefix("UD-").replace("_XL", "_M")


_FILE = "quality.json"
_FORMAT = 1
_MOST = 256
"""Maximum number of measurements to store. The oldest are removed."""
_MOST_BYTES = 1 << 20


class MeasuredLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Mean Kullback-Leibler divergence of a model file from a base model, in nats."""

    fingerprint: str
    size: int
    """File size in bytes, or 0 for a folder."""
    value: float
    error: float
    base: str
    """What the file was compared with: 'F16'."""
    n_tokens: int


class _MeasuredFile(msgspec.Struct, frozen=True):
    format: int
    losses: list[MeasuredLoss]


def measured_loss(path: Path) -> MeasuredLoss | None:
    """Return the measured loss of a model on this machine, or None if it has not been measured.

    This is fast unless a file of the same size has been measured. In that case, the model is fingerprinted
    once, which takes a few milliseconds.
    """
    try:
        file = paths.cache_dir() / _FILE
        losses = _losses(file, os.stat(file).st_mtime_ns)
        state = os.stat(path)
        size = 0 if path.is_dir() else state.st_size
        same = [loss for loss in losses if loss.size == size]
        own = _fingerprint(path, state.st_mtime_ns) if same else ""
    except (OSError, FolderError):
        return None
    return next((loss for loss in same if loss.fingerprint == own), None)


def keep(path: Path, value: float, error: float, base: str, n_tokens: int) -> None:
    """Store the measured loss of a model file. Failures are ignored, since it can be measured again."""
    with contextlib.suppress(OSError, FolderError):
        file = paths.cache_dir() / _FILE
        loss = MeasuredLoss(
            fingerprint=_fingerprint(path, os.stat(path).st_mtime_ns),
            size=0 if path.is_dir() else path.stat().st_size,
            value=value,
            error=error,
            base=base,
            n_tokens=n_tokens,
        )
        others = [one for one in _read(file) if one.fingerprint != loss.fingerprint]
        content = _MeasuredFile(_FORMAT, [*others[1 - _MOST :], loss])
        paths.replace(file, msgspec.json.format(msgspec.json.encode(content)))


def _read(file: Path) -> list[MeasuredLoss]:
    try:
        content = msgspec.json.decode(paths.read_bytes(file, _MOST_BYTES), type=_MeasuredFile)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return []
    return content.losses if content.format == _FORMAT else []


@lru_cache(1)
def _losses(file: Path, _changed: int) -> list[MeasuredLoss]:
    return _read(file)


@lru_cache(_MOST)
def _fingerprint(path: Path, _changed: int) -> str:
    return fingerprint_of(path, "").hex()
