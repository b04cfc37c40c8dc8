"""Wrappers that own llama.cpp's objects: Model and Context free them once, in close().

llama-cpp-python's high-level `Llama` hides much that the engine needs and computes more than the engine uses,
so only low-level functions are called. Every return code is checked here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt
import psutil

from edgechat.base.errors import DecodeFailed, LoadFailed
from edgechat.native import ggml, logs
from edgechat.native.accelerators import rpc
from edgechat.native.accelerators.placement import Placement
from edgechat.native.batches import Candidates, EmbeddingBatch, TokenBatch, pointer, sends_candidates
from edgechat.native.params import N_CANDIDATES, LoadParams

CACHE_TYPES = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}
_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_NEVER_CHOSEN = -1e30
"""The logit for suppressed tokens. Unlike negative infinity, it can be multiplied by a probability of 0."""
DECODE_OK, DECODE_NO_CELLS, DECODE_ABORTED = 0, 1, 2

AdapterPointer = Any
"""A LoRA adapter loaded by llama.cpp."""

# llama.cpp calls `bool abort(void *)` after every operation. A Python function would add a tenth to the time
# per token; strlen takes a nanosecond, and returns 0 (false) while the string is empty.
_libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
_IS_SET = ctypes.cast(_libc.strlen, lib.ggml_abort_callback)
_NEVER = lib.ggml_abort_callback()


class Aborted(Exception):
    """A call was aborted; its last micro-batch has been removed from the cache."""


class Model:
    """A model's weights and vocabulary."""

    def __init__(
        self,
        path: Path,
        load: LoadParams,
        *,
        dry: bool = False,
        writable: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """Load `path`, placing it as `load` specifies. Raises LoadFailed with llama.cpp's error.

        load: see `placement`. dry: only read the header. Contexts of such a model know their sizes but cannot
        decode. writable: load the weights into private memory, in the file's layout.
        """
        ggml.start()
        self._servers: tuple[str, ...] = ()
        self._placement = Placement(load)
        params = lib.llama_model_default_params()
        self._placement.apply(params, load)
        params.load_mtp = load.mtp
        if dry:
            # llama.cpp aborts the process if a dry load maps the file.
            params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
        if writable:
            params.load_mode, params.use_extra_bufts = lib.LLAMA_LOAD_MODE_NONE, False
        report = on_progress or (lambda _progress: None)

        @lib.llama_progress_callback  # type: ignore[untyped-decorator]
        def progress(value: float, _user: object) -> bool:
            report(value)
            return True

        params.progress_callback = progress
        logs.last_errors.clear()
        self._pointer = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._pointer:
            raise logs.refusal()(
                f"llama.cpp cannot load {path.name}: {logs.cause()}",
                hint="The file may be damaged, or need a newer edgechat. Download it again, or use another "
                "model (`edgechat run guide` always works).",
            )
        self._servers = load.rpc
        rpc.hold(self._servers)
        self.vocab = lib.llama_model_get_vocab(self._pointer)
        n_placed, n_layers = load.gpu_layers, self.n_layers
        # llama.cpp would spread the existing layers over the devices in different proportions.
        if n_placed > n_layers + 1:
            self.close()
            raise LoadFailed(
                f"{n_placed} layers of {path.name} were assigned to devices, "
                f"but it has only {n_layers}, plus the output."
            )

    @property
    def pointer(self) -> int:
        """llama.cpp's pointer to the model. Raises ValueError after close()."""
        if not self._pointer:
            raise ValueError("the model is closed")
        return int(self._pointer)

    @property
    def architecture(self) -> str:
        """The GGUF architecture: 'llama', 'gemma3', ..."""
        return self.meta("general.architecture") or "unknown"

    @property
    def n_params(self) -> int:
        """Number of weights."""
        return int(lib.llama_model_n_params(self.pointer))

    @property
    def n_layers(self) -> int:
        """Number of layers, including those that only predict further tokens (MTP)."""
        pointer = self.pointer
        return int(lib.llama_model_n_layer(pointer) + lib.llama_model_n_layer_nextn(pointer))

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return int(lib.llama_vocab_n_tokens(self.vocab))

    @property
    def suppressed(self) -> list[int]:
        """Ids that the file says must never be generated, such as those that stand for parts of an image."""
        count = ctypes.c_int32()
        first = lib.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(count))
        ids = first[: count.value] if first else []
        return [token for token in ids if 0 <= token < self.n_vocab]

    @property
    def train_context(self) -> int:
        """Context length that the model was trained with, in tokens."""
        return int(lib.llama_model_n_ctx_train(self.pointer))

    @property
    def window(self) -> int:
        """Size in tokens of the attention window that some layers use, or 0 if there is none."""
        return int(lib.llama_model_n_swa(self.pointer))

    @property
    def has_recurrent_state(self) -> bool:
        """Whether some layers have a recurrent state, which cannot be truncated."""
        pointer = self.pointer
        return bool(lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer))

    @property
    def uses_mrope(self) -> bool:
        """Whether a position consists of time, row and column (M-RoPE). For text, all three are equal."""
        kinds = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)
        return lib.llama_model_rope_type(self.pointer) in kinds

    @property
    def can_decode(self) -> bool:
        """Whether the model can decode; encoders, used for embeddings or reranking, cannot."""
        return bool(lib.llama_model_has_decoder(self.pointer))

    @property
    def pooling(self) -> str | None:
        """The number of the pooling type for embeddings, as text, or None if it is 0 or not in the file."""
        kind = self.meta(f"{self.architecture}.pooling_type")
        return None if kind == "0" else kind

    @property
    def chat_template(self) -> str | None:
        """The default chat template in the file, or None if there is none."""
        template = lib.llama_model_chat_template(self.pointer, None)
        return template.decode("utf-8", "replace") if template else None

    @property
    def rerank_template(self) -> str | None:
        """A reranking model's prompt, containing '{query}' and '{document}', or None if the file has none."""
        template = lib.llama_model_chat_template(self.pointer, b"rerank")
        return template.decode("utf-8", "replace") if template else None

    def meta(self, key: str) -> str | None:
        """Return a metadata value as llama.cpp prints it, up to 1 KiB."""
        buffer = ctypes.create_string_buffer(1024)
        size = lib.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if size >= 0 else None

    def load_adapter(self, path: Path) -> AdapterPointer:
        """Load a LoRA adapter. It is freed along with the model unless freed earlier. Raises LoadFailed.

        Check the file first: llama.cpp aborts the process on some invalid contents.
        """
        logs.last_errors.clear()
        adapter = lib.llama_adapter_lora_init(self.pointer, str(path).encode())
        if not adapter:
            raise logs.refusal()(f"llama.cpp cannot load {path.name}: {logs.cause()}")
        return adapter

    def free_adapter(self, adapter: AdapterPointer) -> None:
        """Free an adapter that no context is using."""
        lib.llama_adapter_lora_free(adapter)

    def close(self) -> None:
        """Free the model. All of its contexts must be closed first."""
        if self._pointer:
            lib.llama_model_free(self._pointer)
            self._pointer = None
            rpc.release(self._servers)


class Context:
    """A KV cache and its compute buffers. The model must outlive it."""

    def __init__(
        self,
        model: Model,
        params: LoadParams,
        *,
        target: Context | None = None,
        kind: int = lib.LLAMA_CONTEXT_TYPE_DEFAULT,
        on_operation: Callable[[int, bool], bool] | None = None,
    ) -> None:
        """Allocate the context. Raises LoadFailed. target: the context for which this one drafts.

        on_operation: llama.cpp's `cb_eval`, called with a tensor's address and the flag `ask`.
        """
        self._batch = TokenBatch(params.n_batch)
        native = lib.llama_context_default_params()
        native.ctx_type = kind
        if on_operation is not None:
            self._on_operation = lib.ggml_backend_sched_eval_callback(
                lambda tensor, ask, _user: on_operation(tensor, ask)
            )
            native.cb_eval = self._on_operation
        if target is not None:
            native.ctx_other = target.pointer
        native.n_ctx = params.context
        native.n_batch = params.n_batch
        native.n_ubatch = params.n_ubatch
        native.n_seq_max = params.n_seq_max
        native.n_outputs_max = params.n_rows
        native.n_rs_seq = params.n_rs_seq
        native.n_threads = native.n_threads_batch = params.threads
        flash = (lib.LLAMA_FLASH_ATTN_TYPE_DISABLED, lib.LLAMA_FLASH_ATTN_TYPE_ENABLED)
        native.flash_attn_type = flash[params.flash_attention]
        native.type_k = native.type_v = CACHE_TYPES[params.cache_type]
        # A full-size cache for windowed layers takes several times as much memory (12 GiB instead of 2.5).
        native.swa_full = False
        native.kv_unified = True
        native.no_perf = True
        native.offload_kqv = native.op_offload = bool(params.devices)
        native.embeddings = params.embeddings
        if params.embeddings and model.pooling is None:
            native.pooling_type = lib.LLAMA_POOLING_TYPE_MEAN
        self._candidates: Candidates | None = None
        if kind == lib.LLAMA_CONTEXT_TYPE_DEFAULT and sends_candidates(params, model.n_layers, model.n_vocab):
            n_rows = max(params.n_seq_max, params.n_rows)
            self._candidates = Candidates(params.n_seq_max, n_rows, model.n_vocab)
            self._candidates.configure(native)
        logs.last_errors.clear()
        self._pointer = lib.llama_init_from_model(model.pointer, native)
        if not self._pointer:
            self.close()
            raise logs.refusal()(
                f"llama.cpp cannot create a context of {params.context} tokens: {logs.cause()}",
                hint="Try a shorter context: --ctx 4096.",
            )
        self._remote = ggml.device_handles(params.devices) if params.rpc else ()
        self.n_vocab = model.n_vocab
        """Number of logits in a row."""
        self._suppressed = model.suppressed
        self.n_embd = int(lib.llama_model_n_embd_out(model.pointer)) if params.embeddings else 0
        """Size of an embedding, or 0 if none are computed."""
        self.n_pooled = int(lib.llama_model_n_cls_out(model.pointer)) if params.reranks else self.n_embd
        """How many numbers a sequence yields: the size of an embedding, or a reranker's number of scores."""
        n_rows = params.n_batch if params.embeddings else max(params.n_seq_max, params.n_rows)
        self.output_bytes = 4 * (self.n_vocab + self.n_embd) * n_rows
        """Size of llama.cpp's buffer for logits and embeddings, with space for the maximum number of rows."""
        if self._candidates is not None:
            self.output_bytes += self._candidates.bytes
        self.n_seq_max, self.n_outputs_max = params.n_seq_max, params.n_outputs_max
        self.n_batch = int(lib.llama_n_batch(self._pointer))
        """Maximum number of tokens or embeddings in a call."""
        self.n_ubatch = int(lib.llama_n_ubatch(self._pointer))
        """Maximum number of tokens or embeddings in a micro-batch."""
        self.n_embd_input = int(lib.llama_model_n_embd_inp(model.pointer))
        """Size of an embedding that replaces a token."""
        self.n_positions = 4 if model.uses_mrope else 1
        """How many numbers make up a position."""
        self._memory = lib.llama_get_memory(self._pointer)
        self._abort = ctypes.create_string_buffer(2)
        self._abortable = False

    @property
    def pointer(self) -> int:
        """llama.cpp's pointer to the context. Raises ValueError after close()."""
        if not self._pointer:
            raise ValueError("the context is closed")
        return int(self._pointer)

    @property
    def n_ctx(self) -> int:
        """Number of cells in the cache."""
        return int(lib.llama_n_ctx(self._pointer))

    def decode(
        self,
        runs: Sequence[tuple[int, int, Sequence[int], int]],
        *,
        n_candidates: int = 0,
        abortable: bool = False,
    ) -> npt.NDArray[np.float32] | None:
        """Decode runs of (sequence, start position, tokens, wanted rows).

        Returns the rows [n, n_vocab], valid until the next call, or None if the cache has too few free cells.
        n_candidates: how many of the highest logits are needed; others may be -inf. 0 means all of them.
        abortable: whether `abort` may end the call early (only on the CPU); this makes a recurrent state
        useless. Raises Aborted or DecodeFailed.
        """
        n_rows = self._batch.fill(runs)
        if n_rows > (self.n_outputs_max or n_rows):
            raise ValueError(f"{n_rows} rows of logits are over the limit of {self.n_outputs_max}")
        has_all = True
        if self._candidates is not None and n_rows:
            has_all = not 0 < n_candidates <= N_CANDIDATES - len(self._suppressed)
            self._candidates.use(self._pointer, {seq for seq, *_, n in runs if n}, wanted=not has_all)
        return self._decode(self._batch.native, n_rows, has_all=has_all, abortable=abortable)

    def decode_embeddings(
        self,
        seq: int,
        embeddings: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        *,
        causal: bool = True,
        abortable: bool = False,
    ) -> npt.NDArray[np.float32] | None:
        """Decode embeddings [n, n_embd] in place of tokens, at positions [1 or 4, n] (see `MediaChunk`).

        causal: whether each embedding attends only to those before it. If False, all embeddings that attend
        to each other must be in the same call, and there may be at most `n_ubatch` of them. For the other
        arguments and the result, see `decode`.
        """
        n = len(embeddings)
        if not causal and n > self.n_ubatch:  # llama.cpp would abort
            raise ValueError(f"{n} embeddings that see each other are over the limit of {self.n_ubatch}")
        batch = EmbeddingBatch(seq, embeddings, positions)
        if batch.shape != (self.n_positions, self.n_embd_input) or not 0 < n <= self.n_batch:
            raise ValueError(
                f"embeddings {embeddings.shape} at positions {positions.shape} are not this model's"
            )
        lib.llama_set_causal_attn(self.pointer, causal)
        try:
            return self._decode(batch.native, 0, abortable=abortable)
        finally:
            lib.llama_set_causal_attn(self.pointer, True)

    def _decode(
        self, batch: lib.llama_batch, n_rows: int, *, has_all: bool = True, abortable: bool
    ) -> npt.NDArray[np.float32] | None:
        if abortable != self._abortable:
            callback = _IS_SET if abortable else _NEVER
            lib.llama_set_abort_callback(self._pointer, callback, ctypes.addressof(self._abort))
            self._abortable = abortable
        code = int(lib.llama_decode(self._pointer, batch))
        if code == DECODE_NO_CELLS:
            return None
        if code == DECODE_ABORTED:
            raise Aborted
        if code != DECODE_OK:
            raise DecodeFailed(
                f"llama.cpp could not compute a batch (code {code}): {logs.cause()}",
                hint="Send the message again; if it fails again, try a shorter context or another model.",
            )
        if not n_rows:
            # If no rows are fetched, nothing else waits for the device.
            lib.llama_synchronize(self._pointer)
            rpc.wait(self._remote)
            return np.empty((0, self.n_vocab), np.float32)
        if has_all:
            first = ctypes.addressof(lib.llama_get_logits(self._pointer).contents)
            rows = (ctypes.c_float * (n_rows * self.n_vocab)).from_address(first)
            # np.ctypeslib.as_array takes five times as long.
            found = np.ndarray((n_rows, self.n_vocab), np.float32, memoryview(rows))
        else:
            assert self._candidates is not None
            found = self._candidates.rows(self._pointer, n_rows)
        if self._suppressed:
            found[:, self._suppressed] = _NEVER_CHOSEN
        return found

    def use_adapters(self, adapters: Sequence[tuple[AdapterPointer, float]]) -> None:
        """Apply these LoRA adapters, with their scales, to all later calls."""
        n = len(adapters)
        pointers = (lib.llama_adapter_lora_p_ctypes * n)(*(adapter for adapter, _ in adapters))
        scales = (ctypes.c_float * n)(*(scale for _, scale in adapters))
        if lib.llama_set_adapters_lora(self.pointer, pointers, n, scales):
            raise DecodeFailed("llama.cpp cannot apply these adapters.")

    def abort(self) -> None:
        """End the current abortable call and all later ones, until `clear_abort` is called. Thread-safe."""
        self._abort[0] = b"x"

    def clear_abort(self) -> None:
        """Let abortable calls run to completion again."""
        self._abort[0] = b"\0"

    def embed(self, runs: Sequence[tuple[int, int, Sequence[int]]]) -> npt.NDArray[np.float32]:
        """Process runs of (sequence, start position, tokens) and return their pooled results [n, n_pooled].

        Tokens of a sequence from earlier calls are not pooled; they affect the result only through attention.
        Raises DecodeFailed.
        """
        self._batch.fill([(*run, len(run[2])) for run in runs])
        code = int(lib.llama_decode(self._pointer, self._batch.native))  # encodes if there is no cache
        if code != DECODE_OK:
            raise DecodeFailed(f"llama.cpp could not compute an embedding (code {code}): {logs.cause()}")
        embeddings = np.empty((len(runs), self.n_pooled), np.float32)
        for row, (seq, _, _) in zip(embeddings, runs, strict=True):
            pooled = lib.llama_get_embeddings_seq(self._pointer, seq)
            if not pooled:
                raise DecodeFailed("llama.cpp returned no embedding for one of the texts.")
            row[:] = np.ctypeslib.as_array(pooled, (self.n_pooled,))
        return embeddings

    def clear(self) -> None:
        """Remove all sequences."""
        if self._memory:  # encoders have none
            lib.llama_memory_clear(self._memory, False)

    def remove(self, seq: int, start: int) -> bool:
        """Remove the cells of `seq` from position `start` onwards. Returns llama.cpp's result unchecked."""
        return bool(lib.llama_memory_seq_rm(self._memory, seq, start, -1))

    def copy(self, source: int, target: int, stop: int) -> None:
        """Share the cells of `source` up to position `stop` with `target`; -1 shares all of them."""
        lib.llama_memory_seq_cp(self._memory, source, target, -1 if stop < 0 else 0, stop)

    @property
    def n_snapshots(self) -> int:
        """How far a recurrent state can be rolled back, in tokens, or 0 if it has no snapshots."""
        return int(lib.llama_n_rs_seq(self._pointer))

    @property
    def can_shift(self) -> bool:
        """Whether llama.cpp claims that positions can be shifted, which is not always true."""
        return bool(lib.llama_memory_can_shift(self._memory))

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """Remove the cells from position `start` to `stop` and move later cells down."""
        if not lib.llama_memory_seq_rm(self._memory, seq, start, stop):
            return False
        lib.llama_memory_seq_add(self._memory, seq, stop, -1, start - stop)
        return True

    def state(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return a copy of the entire state of `seq`. Raises MemoryError if it is too large."""
        size = int(lib.llama_state_seq_get_size(self._pointer, seq))
        if size > psutil.virtual_memory().available // 2:
            raise MemoryError
        data = np.empty(size, np.uint8)
        written = int(lib.llama_state_seq_get_data(self._pointer, pointer(data, ctypes.c_uint8), size, seq))
        return data[:written]

    def set_state(self, seq: int, state: npt.NDArray[np.uint8]) -> bool:
        """Restore the state of `seq`. Returns False if there are too few cells or the state is invalid."""
        source = np.ascontiguousarray(state)
        data = pointer(source, ctypes.c_uint8)
        return bool(lib.llama_state_seq_set_data(self._pointer, data, source.nbytes, seq))

    def partial_state(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return a copy of the parts of `seq` that `remove` cannot restore: windows and recurrent states.

        Raises MemoryError if llama.cpp cannot copy them.
        """
        size = int(lib.llama_state_seq_get_size_ext(self._pointer, seq, _PARTIAL))
        data = np.empty(size, np.uint8)
        target = pointer(data, ctypes.c_uint8)
        if not size or lib.llama_state_seq_get_data_ext(self._pointer, target, size, seq, _PARTIAL) != size:
            raise MemoryError
        return data

    def set_partial_state(self, seq: int, state: npt.NDArray[np.uint8]) -> bool:
        """Restore a partial state. Returns False, leaving its parts empty, if there are too few cells."""
        data = pointer(state, ctypes.c_uint8)
        return bool(lib.llama_state_seq_set_data_ext(self._pointer, data, state.nbytes, seq, _PARTIAL))

    def last_position(self, seq: int) -> int:
        """Return the largest position in `seq`, or -1 if it is empty."""
        return int(lib.llama_memory_seq_pos_max(self._memory, seq))

    def first_position(self, seq: int) -> int:
        """Return the smallest position in `seq` that is present in all layers, or -1 if it is empty."""
        return int(lib.llama_memory_seq_pos_min(self._memory, seq))

    def close(self) -> None:
        """Free the cache and the buffers."""
        if self._pointer:
            lib.llama_free(self._pointer)
            self._pointer = None
        if self._candidates is not None:
            self._candidates.close()


def build() -> str:
    """Return the version of llama-cpp-python and llama.cpp's system info."""
    return f"{llama_cpp.__version__} {ggml.text(lib.llama_print_system_info())}"
