"""Embeddings with llama.cpp: texts in, one vector each out; nothing is kept between two calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import Logits
from edgechat.native import breakdown, logs
from edgechat.native.buffers import Buffer, counted_once, is_mapped
from edgechat.native.handles import Context, Model
from edgechat.native.vocabulary import NativeVocabulary
from edgechat.planner.plan import LoadPlan


class LlamaCppEmbedder:
    """A GGUF model made for embeddings. One thread; whoever makes it closes it."""

    def __init__(self, plan: LoadPlan, on_progress: Callable[[float], None] | None = None) -> None:
        """Load by the plan; LoadFailed if llama.cpp refuses."""
        logs.install()
        with ExitStack() as stack:
            self._model = Model(Path(plan.model_path), plan, on_progress=on_progress)
            stack.callback(self._model.close)
            self._context = Context(self._model, plan)
            stack.callback(self._context.close)
            self._close = stack.pop_all().close
        self.vocabulary = NativeVocabulary(self._model)
        self.architecture = self._model.architecture
        self.n_params = self._model.n_params
        self.train_context = self._model.train_context
        # An encoder has learnt its positions: llama.cpp aborts at one beyond them.
        self.longest = min(self._context.n_ctx, self.train_context or self._context.n_ctx)
        """Tokens of a text."""
        self.n_batch = plan.n_batch
        """Tokens of a call."""
        self.n_seq_max = plan.n_seq_max
        """Texts of a call."""
        self.dimensions = self._context.n_embd
        self.touched_bytes = 0
        self.buffers = self._allocated(plan)

    def _allocated(self, plan: LoadPlan) -> tuple[Buffer, ...]:
        if not plan.buffers or not breakdown.has_map():
            return ()
        found = breakdown.from_map(self._model, self._context)
        self.touched_bytes = sum(
            one.cache + (0 if is_mapped(one) else one.weights) for one in found.buffers if one.is_host
        )
        return counted_once(found.buffers, sum(buffer.weights for buffer in plan.buffers))

    def embed(self, texts: Sequence[Sequence[int]]) -> Logits:
        """Return a vector of the length 1 (or 0) for each text [n, dimensions]. Raises DecodeFailed.

        Texts that fit into a call together, or one that is longer and then computed in parts.
        """
        self._context.clear()
        if len(texts) == 1:
            (text,) = texts
            for start in range(0, len(text), self.n_batch):
                found = self._context.embed([(0, start, text[start : start + self.n_batch])])
        else:
            found = self._context.embed([(seq, 0, text) for seq, text in enumerate(texts)])
        if not np.isfinite(found).all():
            raise DecodeFailed(
                "The model produced NaN or infinite values.",
                hint="Try another text, or another quantization.",
            )
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        return (found / np.where(norms > 0, norms, 1)).astype(np.float32)

    def close(self) -> None:
        """Free the context, then the model."""
        self._close()
