"""A model that reads a text in chunks, each by itself, as llama-imatrix and llama-perplexity do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import DecodeFailed
from edgechat.native.handles import Context, Model
from edgechat.native.params import LoadParams
from edgechat.native.quantization import tensors
from edgechat.native.vocabulary import NativeVocabulary


class TextReader:
    """A loaded model and its context, of as many tokens as a chunk has."""

    def __init__(
        self,
        path: Path,
        load: LoadParams,
        *,
        writable: bool = False,
        on_operation: Callable[[int, bool], bool] | None = None,
    ) -> None:
        """Load a model, of whose placement and threads `load` decides. Raises LoadFailed."""
        tensors.check()
        self._stack = ExitStack()
        with ExitStack() as stack:
            model = Model(path, load, writable=writable)
            stack.callback(model.close)
            self._context = Context(model, load, on_operation=on_operation)
            stack.callback(self._context.close)
            self._vocabulary = NativeVocabulary(model)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def chunks(self, text: str, length: int) -> list[list[int]]:
        """Return the whole chunks of a text, of `length` tokens, with BOS where the model has one."""
        tokens = self._vocabulary.whole(text)
        begin = self._vocabulary.tokenize("", bos=True, special=False)
        starts = range(0, len(tokens) - length + 1, length)
        return [begin + tokens[start + len(begin) : start + length] for start in starts]

    def logits(self, chunk: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
        """Return the last rows of logits of a chunk [n_rows, n_vocab], valid until the next call."""
        self._context.clear()
        rows = self._context.decode([(0, 0, chunk, n_rows)])
        if rows is None:
            raise DecodeFailed(f"A chunk of {len(chunk)} tokens does not fit into the context.")
        return rows
