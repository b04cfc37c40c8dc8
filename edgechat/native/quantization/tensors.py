"""ggml's tensors, as `cb_eval` sees them between operations, and as weights that can be replaced.

llama_cpp does not bind the struct, so it is mirrored from ggml.h; `check` compares its size with ggml's own.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import EngineError
from edgechat.native import ggml

_OBJECT = 32
"""Bytes that ggml puts before a tensor (GGML_OBJECT_SIZE)."""


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
    """Raise EngineError where ggml's struct is not the one that is mirrored here."""
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
    """Return ggml's name of a tensor's `op`: 'MUL_MAT'."""
    return ggml.text(ggml.call("ggml_op_name", ctypes.c_char_p, ctypes.c_int(number)))


def name_of(tensor: Any) -> str:
    """Return the name of a tensor, also of a copy on another device: 'CUDA0#blk.0.attn_k.weight#0'."""
    parts = tensor.name.decode("utf-8", "replace").split("#")
    return str(parts[1] if len(parts) > 1 else parts[0])


def read(tensor: Any, kind: Any) -> npt.NDArray[Any]:
    """Return a copy of a tensor's numbers, slowest dimension first: [ne3, ne2, ne1, ne0].

    Rows may have gaps between them. kind: numpy's type of one number, as large as ggml's.
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
    """Replace all numbers of a tensor that lies in memory of its own (`Model(writable=True)`)."""
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
