"""Child process of the dry run: loads skeletons for `dry_run.py` without allocating memory.

One process answers many questions: the model stays loaded, and each question gets its own context. If
llama.cpp aborts, crashes or hangs, only this process is affected.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.base.process import child, spawn
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.mtp import stated_layers
from edgechat.native import breakdown, logs
from edgechat.native.accelerators.devices import inventory
from edgechat.native.handles import Context, Model
from edgechat.native.heads import HeadContext
from edgechat.native.params import Breakdown, LoadParams, with_head
from edgechat.planner.estimate.dry_run import AnyQuestion, DevicesQuestion, DryRunAnswer, DryRunQuestion


class SkeletonLoader:
    """Loads skeletons and caches the last one."""

    def __init__(self, *, portable: bool = False) -> None:
        """portable: do not use llama.cpp's C++ interface, even if it is available."""
        self._portable = portable or not breakdown.has_map()
        self._key: tuple[object, ...] | None = None
        self._model: Model | None = None
        self._load_log: list[str] = []
        self._tensors: dict[str, int] = {}

    def answer(self, question: AnyQuestion) -> DryRunAnswer:
        """Return the answer to a question, or the error from llama.cpp."""
        try:
            if isinstance(question, DevicesQuestion):
                return DryRunAnswer(inventory=inventory(question.rpc))
            return DryRunAnswer(self._breakdown(self._load(question), question.params))
        except EdgechatError as error:
            return DryRunAnswer(error=error.message)
        finally:
            if isinstance(question, DryRunQuestion) and question.params.rpc:
                self.close()  # while an RPC server holds a model, it cannot serve anyone else

    def _load(self, question: DryRunQuestion) -> Model:
        params = question.params
        key = (
            question.path,
            params.devices,
            params.split,
            params.experts_in_ram,
            params.rpc,
            params.mtp,
        )
        if self._model is None or key != self._key:
            self.close()
            path = Path(question.path)
            with self._listening() as self._load_log:
                self._model = Model(path, params, dry=True)
            if self._portable:
                self._tensors = _loaded_tensors(read_header(path), params)
            self._key = key
        return self._model

    def _breakdown(self, model: Model, params: LoadParams) -> Breakdown:
        with self._listening() as lines, contextlib.closing(Context(model, params)) as context:
            alone = self._read(model, context, lines)
            if not params.mtp:
                return alone
            with (
                self._listening() as of_head,
                contextlib.closing(HeadContext(model, params, context)) as head,
            ):
                drafting = self._read(model, head, of_head)
        both = with_head(alone.buffers, drafting.buffers)
        return Breakdown(both, alone.output + drafting.output, alone.n_ctx)

    def _read(self, model: Model, context: Context, lines: list[str]) -> Breakdown:
        if self._portable:
            return breakdown.from_log(model, context, [*self._load_log, *lines], self._tensors)
        return breakdown.from_map(model, context)

    def _listening(self) -> contextlib.AbstractContextManager[list[str]]:
        # Each context logs about a thousand lines, so record them only if they will be read.
        return logs.recording() if self._portable else contextlib.nullcontext([])

    def close(self) -> None:
        """Free the model."""
        if self._model is not None:
            self._model.close()
            self._model = None


def _loaded_tensors(header: ModelHeader, params: LoadParams) -> dict[str, int]:
    """Return the size in bytes of each loaded tensor, keyed by name."""
    left_out = () if params.mtp else tuple(f"blk.{layer}." for layer in stated_layers(header))
    return {tensor.name: tensor.n_bytes for tensor in header.tensors if not tensor.name.startswith(left_out)}


def main() -> None:
    """Answer questions until the parent process exits."""
    pipes = spawn.adopt_pipe()
    logs.install()
    loader = SkeletonLoader()

    def answer(question: bytes) -> bytes:
        return msgspec.msgpack.encode(loader.answer(msgspec.msgpack.decode(question, type=AnyQuestion)))

    child.serve(pipes, answer)
