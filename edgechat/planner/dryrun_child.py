"""The child process that makes dry loads of skeletons; `dryrun.py` asks and watches it.

One life answers many questions: the model stays, a context is made for each and freed. Whatever llama.cpp
does to this process (abort, crash, loop) happens to nobody else.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from edgechat import child, spawn
from edgechat.errors import EdgechatError
from edgechat.models.gguf import read_header
from edgechat.native import breakdown, logs
from edgechat.native.buffers import Breakdown
from edgechat.native.handles import Context, ContextParams, Model
from edgechat.planner.dryrun import Answer, Ask, Question


class Loader:
    """The skeleton that was asked about last, loaded."""

    def __init__(self, *, portable: bool = False) -> None:
        """portable: do without llama.cpp's C++ interface even where it is there."""
        self._portable = portable or not breakdown.has_map()
        self._key: tuple[str, int] | None = None
        self._model: Model | None = None
        self._said: list[str] = []
        self._tensors: dict[str, int] = {}

    def answer(self, question: Question) -> Answer:
        """Return what the load would take, or llama.cpp's own words for why it would not do it."""
        try:
            return Answer(self._breakdown(self._load(question), question.ask))
        except EdgechatError as error:
            return Answer(error=error.message)

    def _load(self, question: Question) -> Model:
        key = (question.path, question.ask.gpu_layers)
        if self._model is None or key != self._key:
            self.close()
            path = Path(question.path)
            with self._listening() as self._said:
                self._model = Model(path, gpu_layers=question.ask.gpu_layers, dry=True)
            if self._portable:
                self._tensors = {tensor.name: tensor.n_bytes for tensor in read_header(path).tensors}
            self._key = key
        return self._model

    def _breakdown(self, model: Model, ask: Ask) -> Breakdown:
        with self._listening() as said:
            context = Context(model, _params(ask))
        try:
            if self._portable:
                return breakdown.from_log(model, context, [*self._said, *said], self._tensors)
            return breakdown.from_map(model, context)
        finally:
            context.close()

    def _listening(self) -> contextlib.AbstractContextManager[list[str]]:
        # Some thousand lines for each context: only where they are read.
        return logs.recording() if self._portable else contextlib.nullcontext([])

    def close(self) -> None:
        """Free the model."""
        if self._model is not None:
            self._model.close()
            self._model = None


def _params(ask: Ask) -> ContextParams:
    return ContextParams(
        n_ctx=ask.n_ctx,
        n_batch=ask.n_batch,
        n_ubatch=ask.n_ubatch,
        n_seq_max=ask.n_seq_max,
        n_outputs_max=ask.n_outputs_max,
        n_rs_seq=ask.n_rs_seq,
        threads=1,
        cache_type=ask.cache_type,
        flash_attention=ask.flash_attention,
    )


def main() -> None:
    """Answer Question with Answer until the parent goes away."""
    pipes = spawn.adopt_pipe()
    logs.install()
    loader = Loader()

    def answer(question: bytes) -> bytes:
        return msgspec.msgpack.encode(loader.answer(msgspec.msgpack.decode(question, type=Question)))

    child.serve(pipes, answer)
