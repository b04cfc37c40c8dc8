"""ggml's tensors: reading them between operations, replacing weights, and rounding weights to a type.

llama_cpp does not bind the struct, so it is copied from ggml.h; `check` compares its size with ggml's own.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import EngineError
from edgechat.native import ggml

_OBJECT = 32
"""Size in bytes of the header that ggml puts before a tensor (GGML_OBJECT_SIZE)."""


class GgmlTensor(ctypes.Structure):
    """struct ggml_tensor."""


_Pointer = ctypes.POINTER(GgmlTensor)
GgmlTensor._fields_ = (
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32),
    ("src", _Pointer * 10),
    ("view_src", _Pointer),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
)


def check() -> None:
    """Raise EngineError if ggml's struct differs from the copy here."""
    size = ggml.call("ggml_tensor_overhead", ctypes.c_size_t) - _OBJECT
    if size != ctypes.sizeof(GgmlTensor):
        raise EngineError(
            f"llama.cpp's tensors have {size} bytes instead of {ctypes.sizeof(GgmlTensor)}.",
            hint="Use the version of llama-cpp-python that edgechat was tested with.",
        )


def at(address: int) -> Any:
    """Return the tensor at an address."""
    return ctypes.cast(address, _Pointer).contents


@cache
def operation(number: int) -> str:
    """Return ggml's name for an operation, such as 'MUL_MAT', given a tensor's `op`."""
    return ggml.text(ggml.call("ggml_op_name", ctypes.c_char_p, ctypes.c_int(number)))


def name_of(tensor: Any) -> str:
    """Return a tensor's name without the parts added for a device's copy ('CUDA0#blk.0.attn_k.weight#0')."""
    parts = tensor.name.decode("utf-8", "replace").split("#")
    return str(parts[1] if len(parts) > 1 else parts[0])


def read(tensor: Any, kind: Any) -> npt.NDArray[Any]:
    """Return a copy of a tensor's values, slowest dimension first: [ne3, ne2, ne1, ne0].

    Rows may have gaps between them. kind: the numpy type for the values, of the same size as ggml's type.
    """
    size = ggml.ask("ggml_nbytes", ctypes.c_size_t, ctypes.addressof(tensor))
    data = np.empty(size, np.uint8)
    ggml.call(
        "ggml_backend_tensor_get",
        None,
        ctypes.c_void_p(ctypes.addressof(tensor)),
        ctypes.c_void_p(data.ctypes.data),
        ctypes.c_size_t(0),
        ctypes.c_size_t(size),
    )
    return np.lib.stride_tricks.as_strided(
        data[: size - size % np.dtype(kind).itemsize].view(kind),
        tuple(tensor.ne)[::-1],
        tuple(tensor.nb)[::-1],
    )


def write(tensor: Any, data: npt.NDArray[Any]) -> None:
    """Replace all values of a tensor in private memory (`Model(writable=True)`)."""
    size = ggml.ask("ggml_nbytes", ctypes.c_size_t, ctypes.addressof(tensor))
    if not data.flags.c_contiguous or data.nbytes != size:
        raise ValueError(f"{data.nbytes} bytes for a tensor of {size}")
    ggml.call(
        "ggml_backend_tensor_set",
        None,
        ctypes.c_void_p(ctypes.addressof(tensor)),
        ctypes.c_void_p(data.ctypes.data),
        ctypes.c_size_t(0),
        ctypes.c_size_t(size),
    )


Floats = npt.NDArray[np.float32]
_SLAB = 1 << 18
"""How many weights a thread rounds at a time."""


class _Traits(ctypes.Structure):
    """struct ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    )


_quantize = ggml.library.ggml_quantize_chunk
_quantize.restype = ctypes.c_size_t
_quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]


def pack(rows: Floats, kind: int, packed: npt.NDArray[np.uint8], importance: Floats | None = None) -> None:
    """Write `rows` [n, n_columns] to `packed` as ggml type `kind`. importance: [n_columns]."""
    column = None if importance is None else importance.ctypes.data
    _quantize(kind, rows.ctypes.data, packed.ctypes.data, 0, *rows.shape, column)


def _traits(kind: int) -> _Traits:
    pointer = ggml.call("ggml_get_type_traits", ctypes.POINTER(_Traits), ctypes.c_int(kind))
    traits: _Traits = pointer.contents
    return traits


def rounded(weights: Floats, kind: int, importance: Floats | None, threads: int) -> Floats:
    """Round `weights` [n_matrices, n_rows, n_columns] to ggml's type `kind`, using several threads.

    importance: one value per column [n_matrices, n_columns], as `llama_model_quantize` expects.
    """
    n_matrices, n_rows, n_columns = weights.shape
    result = np.empty_like(weights)
    traits = _traits(kind)
    row_bytes = n_columns // traits.blck_size * traits.type_size
    step = max(1, _SLAB // n_columns)

    def slab(matrix: int, start: int) -> None:
        stop = min(start + step, n_rows)
        source, target = weights[matrix, start:stop], result[matrix, start:stop]
        packed = np.empty((stop - start) * row_bytes, np.uint8)
        pack(source, kind, packed, None if importance is None else importance[matrix])
        traits.to_float(packed.ctypes.data, target.ctypes.data, target.size)

    with ThreadPoolExecutor(threads) as pool:
        slabs = [(matrix, start) for matrix in range(n_matrices) for start in range(0, n_rows, step)]
        for _ in pool.map(lambda one: slab(*one), slabs):
            pass
    return result
