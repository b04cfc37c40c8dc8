"""A reranking model whose order is known: the greater the share of the letter z the better a pair.

Its one layer lets every token see all others alike, so the first one gets their mean, and the head reads the
one channel in which z differs from everything else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type

from tests.kit.build import MODELS_DIR, Spec, data_of, fingerprint, made, write
from tests.kit.shapes import RERANKERS, Tensor
from tests.kit.weights import Bytes

SPEC = Spec(shape=RERANKERS["bert-reranker"].sized(n_layers=1), name="tiny-counting-reranker")


def counting_reranker(folder: Path = MODELS_DIR) -> Path:
    """Return the path of the model."""
    path = folder / f"{SPEC.name}-{fingerprint(SPEC)}.gguf"
    return made(path, lambda to: write(SPEC, to, data=_data))


def _data(spec: Spec, tensor: Tensor, kind: Type) -> Bytes:
    shape = tensor.shape[::-1]
    values = np.zeros(shape, np.float32)
    match tensor.name:
        case "token_embd.weight":  # channels of mean 0 and deviation 1, which the norms leave as they are
            values[:] = np.where(np.arange(shape[1]) % 2, 1.0, -1.0)
            values[ord("z"), :2] = 1.0, -1.0
        case "blk.0.attn_v.weight" | "blk.0.attn_output.weight" | "cls.weight":
            values[:] = np.eye(shape[0])
        case "cls.output.weight":
            values[0, 0] = 4.0
        case name if name.endswith("norm.weight"):
            return data_of(spec, tensor, kind)
    return values.view(np.uint8).reshape(shape[0], -1) if values.ndim > 1 else values.view(np.uint8)
