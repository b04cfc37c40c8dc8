"""Quantization with llama.cpp, and the importance matrix.

`llama_model_quantize` converts one model file into another, tensor by tensor, or only reports the resulting
types. For each column of a weight matrix, the importance matrix holds the sum of the squares of the inputs
that the column is multiplied by. As in llama.cpp's `tools/imatrix`, it is collected over separate chunks of a
text, from all multiplications with a layer's weights, and separately for each expert (MUL_MAT_ID).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.base.errors import DecodeFailed, NotQuantized
from edgechat.native import ggml, logs, tensors
from edgechat.native.handles import Context, Model
from edgechat.native.params import LoadParams
from edgechat.native.vocabulary import NativeVocabulary

Floats = npt.NDArray[np.float32]
_MAX_BUFFER = 1 << 30
"""Maximum bytes of a tensor's rows that llama.cpp holds in memory at a time, an eighth of the default."""
_MAX_TEXT = 127
"""Longest string, in bytes, that llama.cpp accepts as a metadata value."""
_NEEDS_IMPORTANCE = "will require an imatrix"
_BEGUN = re.compile(r"\[ *\d+/ *\d+\] (?P<name>.+?) *- \[", re.DOTALL)
_SIZE = re.compile(r"size = .*?(?:\((?P<type>\w+)\))?\s*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class QuantizeParams:
    """Options for a quantization."""

    file_type: int
    """llama.cpp's number for a mixture of types: `general.file_type`."""
    threads: int = 1
    types: Mapping[str, int] = field(default_factory=dict)
    """ggml types for the tensors that get a different type than in the mixture, keyed by name."""
    importance: Mapping[str, Floats] | None = None
    """[n_matrices, n_columns] for each weight. In a dry run, an empty mapping stands for any matrix."""
    metadata: Mapping[str, str | int | float] = field(default_factory=dict)
    keep_split: bool = False
    """Whether to write as many shards as the source has, named TARGET-00001-of-0000N.gguf."""


def quantize(
    source: Path, target: Path, params: QuantizeParams, on_tensor: Callable[[str], None] = lambda _name: None
) -> None:
    """Quantize `source` to `target`. on_tensor: called with each tensor's name before it is quantized.

    Raises NotQuantized with llama.cpp's reason; a partial file may then be left behind.
    """

    def hear(text: str) -> None:
        if begun := _BEGUN.match(text):
            on_tensor(begun["name"])

    _call(source, target, params, hear, dry=False)


def target_types(source: Path, params: QuantizeParams) -> dict[str, str]:
    """Return the type that each tensor gets, as ggml spells it ('q4_K'), or '' if it does not change.

    No weights are read. Raises NotQuantized, including when a required importance matrix is missing.
    """
    types: dict[str, str] = {}
    needs_importance = False

    def hear(text: str) -> None:
        nonlocal needs_importance
        needs_importance |= _NEEDS_IMPORTANCE in text
        if begun := _BEGUN.match(text):
            types[begun["name"]] = ""
        elif types and (size := _SIZE.fullmatch(text)):
            types[next(reversed(types))] = size["type"] or ""

    _call(source, Path(), params, hear, dry=True)
    if needs_importance:
        raise NotQuantized(
            "This quantization has so few bits that it needs an importance matrix.",
            hint="Add --imatrix auto, or --imatrix FILE with text similar to what the model is for.",
        )
    return types


def _call(
    source: Path, target: Path, params: QuantizeParams, hear: Callable[[str], None], *, dry: bool
) -> None:
    ggml.start()
    native = lib.llama_model_quantize_default_params()
    native.ftype, native.nthread = params.file_type, params.threads
    native.dry_run, native.keep_split = dry, params.keep_split
    native.allow_requantize = True
    native.max_buf_size = _MAX_BUFFER
    if params.importance is not None:
        importance = _importance(params.importance)
        native.imatrix = importance
    if params.types:
        overrides = [
            lib.llama_model_tensor_override(f"^{re.escape(name)}$".encode(), kind)
            for name, kind in params.types.items()
        ]
        native.tt_overrides = (lib.llama_model_tensor_override * (len(overrides) + 1))(*overrides)
    if params.metadata:
        entries = [_entry(key, value) for key, value in params.metadata.items()]
        native.kv_overrides = (lib.llama_model_kv_override * (len(entries) + 1))(*entries)
    logs.last_errors.clear()
    with logs.listening(hear):
        code = lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(native))
    if code != 0:
        raise NotQuantized(
            f"llama.cpp cannot quantize {source.name}: {logs.cause()}",
            hint="Check the free disk space and the file: edgechat verify FILE",
        )


def _importance(importance: Mapping[str, Floats]) -> ctypes.Array[lib.llama_model_imatrix_data]:
    """Return the importance values as the array that llama.cpp expects, with at least one entry."""
    values = importance or {"": np.ones(1, np.float32)}
    entries = [
        lib.llama_model_imatrix_data(
            name.encode(), one.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), one.size
        )
        for name, one in values.items()
    ]
    array = (lib.llama_model_imatrix_data * (len(entries) + 1))(*entries)
    array.keep = values  # type: ignore[attr-defined]  # the pointers refer to these
    return array


def _entry(key: str, value: str | int | float) -> Any:
    entry: Any = lib.llama_model_kv_override()
    entry.key = key.encode()
    if isinstance(value, str):
        entry.tag = lib.LLAMA_KV_OVERRIDE_TYPE_STR
        # Do not cut a character in half.
        text = value.encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore")
        entry.value.val_str = text.encode()
    elif isinstance(value, int):
        entry.tag, entry.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
    else:
        entry.tag, entry.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
    return entry


_LEAST_ROWS = 16
"""Multiplications with fewer rows than this are ignored, as in llama.cpp."""


@dataclass(slots=True)
class ActivationSums:
    """The sums collected so far, keyed by the name of the weight."""

    squares: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """[n_matrices, n_columns]"""
    counts: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """How many rows were multiplied: [n_matrices] for experts, otherwise [1]."""
    failure: BaseException | None = None

    def on_operation(self, address: int, ask: bool) -> bool:
        """Handle `cb_eval`.

        Before an operation (`ask`), return whether its result is needed; after it, whether to continue.
        """
        tensor = tensors.at(address)
        if ask:
            return _counts(tensor)
        try:
            add = self._add_experts if tensors.operation(tensor.op) == "MUL_MAT_ID" else self._add
            add(tensor)
        except BaseException as error:  # ctypes would only print it
            self.failure = self.failure or error
        return self.failure is None

    def _add(self, tensor: Any) -> None:
        weight = tensor.src[0].contents
        x = tensors.read(tensor.src[1].contents, np.float32)
        n3, n2, n_rows, n_columns = x.shape
        w2, w3 = weight.ne[2], weight.ne[3]
        squares, counts = self._of(tensors.name_of(weight), w2 * w3, n_columns, 1)
        each = np.square(x).sum(2, dtype=np.float64)
        for i3 in range(n3):
            for i2 in range(n2):
                squares[i3 % w3 * w2 + i2 % w2] += each[i3, i2]
        counts += n3 * n2 * n_rows // (w2 * w3)

    def _add_experts(self, tensor: Any) -> None:
        weight = tensor.src[0].contents
        x = tensors.read(tensor.src[1].contents, np.float32)[0]  # [n_tokens, n_used or 1, n_columns]
        chosen = tensors.read(tensor.src[2].contents, np.int32)[0, 0]  # [n_tokens, n_used]
        n_experts = weight.ne[2]
        squares, counts = self._of(tensors.name_of(weight), n_experts, x.shape[2], n_experts)
        x = np.square(x)
        for slot in range(chosen.shape[1]):
            np.add.at(squares, chosen[:, slot], x[:, slot % x.shape[1]])
        counts += np.bincount(chosen.ravel(), minlength=n_experts)

    def _of(
        self, name: str, n_matrices: int, n_columns: int, n_counts: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        if name not in self.squares:
            self.squares[name] = np.zeros((n_matrices, n_columns))
            self.counts[name] = np.zeros(n_counts, np.int64)
        return self.squares[name], self.counts[name]


def _counts(tensor: Any) -> bool:
    operation = tensors.operation(tensor.op)
    if operation == "MUL_MAT_ID":
        return True
    if operation != "MUL_MAT":
        return False
    x = tensor.src[1].contents
    is_large = x.ne[1] >= _LEAST_ROWS and x.type == lib.GGML_TYPE_F32
    return is_large and tensors.name_of(tensor.src[0].contents).startswith("blk.")


class TextReader:
    """A loaded model whose context is as long as one chunk."""

    def __init__(
        self,
        path: Path,
        load: LoadParams,
        *,
        writable: bool = False,
        on_operation: Callable[[int, bool], bool] | None = None,
    ) -> None:
        """Load a model, placing it as `load` specifies. Raises LoadFailed."""
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
        """Split a text into complete chunks of `length` tokens; each starts with BOS if the model has one."""
        tokens = self._vocabulary.whole(text)
        begin = self._vocabulary.tokenize("", bos=True, special=False)
        starts = range(0, len(tokens) - length + 1, length)
        return [begin + tokens[start + len(begin) : start + length] for start in starts]

    def logits(self, chunk: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
        """Return the logits [n_rows, n_vocab] for the last tokens of a chunk, valid until the next call."""
        self._context.clear()
        rows = self._context.decode([(0, 0, chunk, n_rows)])
        if rows is None:
            raise DecodeFailed(f"A chunk of {len(chunk)} tokens does not fit into the context.")
        return rows
