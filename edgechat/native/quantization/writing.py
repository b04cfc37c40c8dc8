"""`llama_model_quantize`: a model file from another one, tensor by tensor, or only what it would come to."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.base.errors import NotQuantized
from edgechat.native import ggml, logs

Floats = npt.NDArray[np.float32]
_MAX_BUFFER = 1 << 30
"""Bytes of a tensor's rows that llama.cpp keeps in memory; it would take eight times as much."""
_MAX_TEXT = 127
"""Bytes of a text in the metadata that llama.cpp takes."""
_NEEDS_IMPORTANCE = "will require an imatrix"
_BEGUN = re.compile(r"\[ *\d+/ *\d+\] (?P<name>.+?) *- \[", re.DOTALL)
_SIZE = re.compile(r"size = .*?(?:\((?P<type>\w+)\))?\s*", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class QuantizeParams:
    """How a file is quantized."""

    file_type: int
    """llama.cpp's number of a mixture: `general.file_type`."""
    threads: int = 1
    types: Mapping[str, int] = field(default_factory=dict)
    """ggml's types of tensors that shall have others than the mixture gives them."""
    importance: Mapping[str, Floats] | None = None
    """[n_matrices, n_columns] of each weight; an empty mapping is not the same as None in a dry run."""
    metadata: Mapping[str, str | int | float] = field(default_factory=dict)
    keep_split: bool = False
    """Write as many shards as the source has, named TARGET-00001-of-0000N.gguf."""


def quantize(
    source: Path, target: Path, params: QuantizeParams, on_tensor: Callable[[str], None] = lambda _name: None
) -> None:
    """Write `target`. on_tensor: called with the name of each tensor before it is quantized.

    Raises NotQuantized with llama.cpp's own reason; then there may be a part of the file.
    """

    def hear(text: str) -> None:
        if begun := _BEGUN.match(text):
            on_tensor(begun["name"])

    _call(source, target, params, hear, dry=False)


def target_types(source: Path, params: QuantizeParams) -> dict[str, str]:
    """Return the type that each tensor would get, as ggml calls it ('q4_K'), or '' for the one that it has.

    Of the weights nothing is read. Raises NotQuantized, also where a matrix is needed and there is none.
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
            hint="Add --imatrix auto, or --imatrix FILE with a text of the kind that the model is for.",
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
    """Return llama.cpp's list; it takes one entry at least for the presence of a matrix."""
    values = importance or {"": np.ones(1, np.float32)}
    entries = [
        lib.llama_model_imatrix_data(
            name.encode(), one.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), one.size
        )
        for name, one in values.items()
    ]
    array = (lib.llama_model_imatrix_data * (len(entries) + 1))(*entries)
    array.keep = values  # type: ignore[attr-defined]  # the pointers are into these
    return array


def _entry(key: str, value: str | int | float) -> Any:
    entry: Any = lib.llama_model_kv_override()
    entry.key = key.encode()
    if isinstance(value, str):
        entry.tag = lib.LLAMA_KV_OVERRIDE_TYPE_STR
        # Not in the middle of a character.
        text = value.encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore")
        entry.value.val_str = text.encode()
    elif isinstance(value, int):
        entry.tag, entry.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
    else:
        entry.tag, entry.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
    return entry
