"""Finds the type of each tensor at a given quantization with a dry run of llama.cpp's own quantizer.

With `dry_run`, `llama_model_quantize` reads a header, writes nothing, and logs a line for each tensor.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import llama_cpp.llama_cpp as lib
from tensors import NOT_METADATA, Numbers, plain, table

from edgechat.models.formats.header import GgufArray, ModelHeader, ModelTensor, Value
from edgechat.models.formats.quants import FILE_TYPES, GgmlType
from edgechat.models.formats.skeleton import write_skeleton
from edgechat.native import logs

LADDER = (
    "Q2_K",
    "Q3_K_S",
    "Q3_K_M",
    "Q3_K_L",
    "IQ4_XS",
    "Q4_0",
    "Q4_K_S",
    "Q4_K_M",
    "Q5_K_S",
    "Q5_K_M",
    "Q6_K",
    "Q8_0",
    "F16",
    "MXFP4",
)
"""Quantizations to create skeletons for, if a repository has them."""

_LINE = re.compile(r"\]\s+(?P<name>\S+)\s+- \[.*?\], type =\s*(?P<type>\w+), ")
_NEW = re.compile(r"-> .* MiB \((?P<type>\w+)\)")


def f16(name: str, arch: str, numbers: Numbers) -> ModelHeader:
    """Return a model's header as a converter writes it: weights in F16, everything else in F32."""
    metadata: dict[str, Value] = {"general.architecture": arch, "general.name": name}
    for key, value in numbers.items():
        if key not in NOT_METADATA:
            metadata[f"{arch}.{key}"] = _array(value) if isinstance(value, list) else value
    if "token_types" in numbers:
        metadata["tokenizer.ggml.token_type_count"] = numbers["token_types"]
    rows = table(arch, numbers)
    kinds = [GgmlType.F32 if plain(row) else GgmlType.F16 for row in rows]
    tensors = [tensor(*row, kind) for row, kind in zip(rows, kinds, strict=True)]
    return _with("F16", ModelHeader(f"{name}.gguf", 3, metadata, tuple(tensors), 0, 32, 0))


def quantized(header: ModelHeader, quant: str, *, imatrix: bool) -> ModelHeader:
    """Return the header that llama.cpp's quantizer would write. Raises ValueError if quantizing fails."""
    if quant == "F16":
        return header
    kinds = _ask(header, quant, imatrix)
    if set(kinds) != {one.name for one in header.tensors}:
        raise ValueError(f"{header.path}: llama.cpp says nothing of some tensors for {quant}.")
    tensors = tuple(tensor(one.name, one.shape, kinds[one.name]) for one in header.tensors)
    return _with(quant, replace(header, tensors=tensors))


def _ask(header: ModelHeader, quant: str, imatrix: bool) -> dict[str, GgmlType]:
    params = lib.llama_model_quantize_default_params()
    params.ftype = next(number for number, name in FILE_TYPES.items() if name == quant)
    params.dry_run, params.nthread = True, 1
    if imatrix:  # only its presence matters here, not its values
        number = (ctypes.c_float * 1)(1.0)
        data = (lib.llama_model_imatrix_data * 2)()
        data[0].name, data[0].data, data[0].size = b"none", number, 1
        params.imatrix = data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f16.gguf"
        write_skeleton(header, path)
        with logs.recording() as lines:
            code = lib.llama_model_quantize(bytes(path), bytes(path.with_name("out")), ctypes.byref(params))
    if code:
        raise ValueError(f"{header.path}: llama.cpp cannot quantize it to {quant}: {''.join(lines[-3:])}")
    return _read(lines)


def _read(lines: list[str]) -> dict[str, GgmlType]:
    """Return each tensor's type from the log: the original type, unless its line ends with a new one."""
    found: dict[str, GgmlType] = {}
    name = ""
    for line in lines:
        if begins := _LINE.search(line):
            name = begins["name"]
            found[name] = GgmlType[begins["type"].upper()]
        if name and (ends := _NEW.search(line)):
            found[name] = GgmlType[ends["type"].upper()]
            name = ""
    return found


def _with(quant: str, header: ModelHeader) -> ModelHeader:
    number = next(number for number, name in FILE_TYPES.items() if name == quant)
    return placed(replace(header, metadata=header.metadata | {"general.file_type": number}))


def placed(header: ModelHeader) -> ModelHeader:
    """Return the header with its tensors laid out one after another and the file size to match."""
    at, tensors = 0, []
    for one in header.tensors:
        tensors.append(replace(one, offset=at))
        at += -(-one.n_bytes // 32) * 32
    return replace(header, tensors=tuple(tensors), file_size=at)


def tensor(name: str, shape: tuple[int, ...], kind: GgmlType) -> ModelTensor:
    """Return a tensor that has no offset yet."""
    n_bytes = kind.row_bytes(shape[0])
    for n in shape[1:]:
        n_bytes *= n
    return ModelTensor(name, shape, kind, 0, n_bytes)


def _array(values: list[int] | list[bool] | list[str]) -> GgufArray:
    kinds = {bool: "bool", int: "uint32", str: "string"}
    return GgufArray(kinds[type(values[0])], len(values), tuple(values))
