"""What a model computes for the next token, as arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import DecodeFailed

Logits = npt.NDArray[np.float32]
Embeddings = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]
Probabilities = npt.NDArray[np.float64]
Distribution = tuple[Ids, Probabilities]
"""The ids that may come next and their probabilities, which add up to 1."""


def broken_logits() -> DecodeFailed:
    """Return the error for NaN or infinite logits."""
    return DecodeFailed(
        "The model produced NaN or infinite logits; its weights may be damaged.",
        hint="Download the model again, or use another quantization.",
    )
