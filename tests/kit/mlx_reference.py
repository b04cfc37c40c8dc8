"""A plain runner on top of mlx-lm's own generation, to compare edgechat's MLX backend with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.generate import generate_step
from mlx_lm.utils import load

Logits = npt.NDArray[np.float32]


class MlxReference:
    """A model and its tokenizer, loaded by mlx-lm; nothing is reused between calls."""

    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer = load(str(folder))[:2]

    def __enter__(self) -> MlxReference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        del self.model

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, in which control tokens are recognized."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self.tokenizer.decode(list(tokens)))

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """Return n greedy tokens after the prompt, from an empty cache."""
        steps = generate_step(mx.array(prompt), self.model, max_tokens=n)
        return [int(token) for token, _ in islice(steps, n)]

    def rows(self, tokens: Sequence[int]) -> Logits:
        """Compute tokens in one call, with nothing cached: [len(tokens), n_vocab]."""
        return np.array(self.model(mx.array([list(tokens)]))[0].astype(mx.float32))
