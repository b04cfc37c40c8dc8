"""What is left of weights when they are stored in a type of fewer bits, computed by ggml itself."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.native import ggml

Floats = npt.NDArray[np.float32]
_SLAB = 1 << 18
"""Weights that one thread rounds at once."""


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


_quantize = lib._lib.ggml_quantize_chunk
_quantize.restype = ctypes.c_size_t
_quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]


def _traits(kind: int) -> _Traits:
    pointer = ggml.call("ggml_get_type_traits", ctypes.POINTER(_Traits), ctypes.c_int(kind))
    traits: _Traits = pointer.contents
    return traits


def rounded(weights: Floats, kind: int, importance: Floats | None, threads: int) -> Floats:
    """Return `weights` [n_matrices, n_rows, n_columns] as they are after storing them in ggml's type `kind`.

    importance: of each column, [n_matrices, n_columns], as `llama_model_quantize` uses it.
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
        column = importance[matrix].ctypes.data if importance is not None else None
        _quantize(kind, source.ctypes.data, packed.ctypes.data, 0, stop - start, n_columns, column)
        traits.to_float(packed.ctypes.data, target.ctypes.data, target.size)

    with ThreadPoolExecutor(threads) as pool:
        slabs = [(matrix, start) for matrix in range(n_matrices) for start in range(0, n_rows, step)]
        for _ in pool.map(lambda one: slab(*one), slabs):
            pass
    return result
