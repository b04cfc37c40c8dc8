"""The llama.cpp backend.

llama.cpp's cache operations return True where their result is wrong on some architectures: a windowed
model cut back behind its window goes on with keys that are no longer there. `truncate` therefore decides
for itself (see `_can_cut`) and answers False where the result would not be the true one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from edgechat.engine.backends.base import CacheFull, Capabilities, Logits, Part, Vocabulary
from edgechat.errors import LoadFailed
from edgechat.native import breakdown, logs
from edgechat.native.buffers import Buffer, counted_once, is_mapped
from edgechat.native.handles import Context, Model
from edgechat.native.vocabulary import NativeVocabulary
from edgechat.planner.plan import LoadPlan


class LlamaCppBackend:
    """A GGUF model in llama.cpp."""

    capabilities = Capabilities(mixes=True)

    def __init__(self, plan: LoadPlan, on_progress: Callable[[float], None] | None = None) -> None:
        """Load by the plan; LoadFailed if llama.cpp refuses."""
        logs.install()
        with ExitStack() as stack:
            self._model = Model(Path(plan.model_path), plan, on_progress=on_progress)
            stack.callback(self._model.close)
            if not self._model.can_decode:
                raise LoadFailed(
                    f"{plan.model_name} is an encoder: it makes embeddings and cannot chat.",
                    hint="Choose a model made for chat; `edgechat run guide` always works.",
                )
            self._context = Context(self._model, plan)
            stack.callback(self._context.close)
            self._close = stack.pop_all().close
        self.vocabulary: Vocabulary = NativeVocabulary(self._model)
        self.context = self._context.n_ctx
        self.n_seq_max = plan.n_seq_max
        self.chat_template = self._model.chat_template
        self.architecture = self._model.architecture
        self.n_params = self._model.n_params
        self.touched_bytes = 0
        self.buffers = self._allocated(plan)
        self.train_context = self._model.train_context
        self._window = self._model.window
        # A batch of several micro-batches loses keys inside the window, in silence (seen with two sequences).
        self.n_batch = min(plan.n_batch, plan.n_ubatch) if self._window else plan.n_batch
        self._recurrent = self._model.has_recurrent_state

    def _allocated(self, plan: LoadPlan) -> tuple[Buffer, ...]:
        # The plan's were read from the same library's map, in a process that survived it.
        if not plan.buffers or not breakdown.has_map():
            return ()
        found = breakdown.from_map(self._model, self._context)
        # What is computed in is filled by the first batches; what is mapped is the file's.
        self.touched_bytes = sum(
            one.cache + (0 if is_mapped(one) else one.weights) for one in found.buffers if one.is_host
        )
        return counted_once(found.buffers, sum(buffer.weights for buffer in plan.buffers))

    def decode(self, parts: Sequence[Part]) -> Logits:
        """Compute a batch; see `Backend.decode`."""
        rows = self._context.decode([(part.seq, part.start, part.tokens, part.n_logits) for part in parts])
        if rows is None:
            raise CacheFull
        return rows

    def truncate(self, seq: int, length: int) -> bool:
        """Cut a sequence; see `Backend.truncate`."""
        if length > 0 and not self._can_cut(seq, length):
            return False
        return self._context.remove(seq, length)

    def _can_cut(self, seq: int, length: int) -> bool:
        if self._recurrent:
            return False
        # The next token looks back over the whole window: every position of it must still be there.
        return not self._window or self._context.first_position(seq) <= max(0, length - self._window)

    def close(self) -> None:
        """Free the cache, then the model."""
        self._close()
