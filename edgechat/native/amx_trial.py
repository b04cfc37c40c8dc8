"""Child process that compares matrix products with and without AMX, because broken kernels may crash it."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from edgechat.base.process.ask import answer
from edgechat.native import amx, ggml, tensors

_TYPES = {
    "F16": lib.GGML_TYPE_F16,
    "Q4_0": lib.GGML_TYPE_Q4_0,
    "Q4_1": lib.GGML_TYPE_Q4_1,
    "Q8_0": lib.GGML_TYPE_Q8_0,
    "Q4_K": lib.GGML_TYPE_Q4_K,
    "Q5_K": lib.GGML_TYPE_Q5_K,
    "Q6_K": lib.GGML_TYPE_Q6_K,
    "IQ4_XS": lib.GGML_TYPE_IQ4_XS,
}
"""Types for which llama.cpp has AMX kernels."""
_COLUMNS, _ROWS = 512, 96
"""Shape of the weights. Each row is two blocks long for the K types; the rows fill one and a half blocks."""
_TOKENS = (1, 40)
"""Batch sizes to try, in tokens: 1 uses a kernel without tiles; 40 fill one tile of 32 and part of
another.
"""
_MOST_ERROR = 1e-3
"""Largest accepted error, relative to the norm of the product. Both products round their input in the same
way; observed errors are 5e-8 to 3e-7, or 2e-4 with F16.
"""
_ARENA = 1 << 20

Floats = npt.NDArray[np.float32]


class _InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("size", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def main() -> None:
    """Tell the parent why AMX cannot be used; send nothing if it can."""
    answer(lambda _request: _failure().encode())


def _failure() -> str:
    tensors.check()
    ggml.load_backends()
    layouts = {ggml.buffer_type_name(layout): layout for layout in ggml.weight_layouts()}
    if amx.NAME not in layouts:
        return "found that this build of llama.cpp lacks it, or that Linux does not permit its use"
    numbers = np.random.default_rng(0)
    weights = numbers.standard_normal((_ROWS, _COLUMNS), np.float32)
    wrong = []
    for name, kind in _TYPES.items():
        for n_tokens in _TOKENS:
            given = numbers.standard_normal((n_tokens, _COLUMNS), np.float32)
            plain = _product(kind, weights, given, ggml.cpu_buffers())
            error = np.linalg.norm(_product(kind, weights, given, layouts[amx.NAME]) - plain)
            if not error <= _MOST_ERROR * np.linalg.norm(plain) and name not in wrong:
                wrong.append(name)
    return f"gives wrong products for {', '.join(wrong)}" if wrong else ""


def _product(kind: int, weights: Floats, given: Floats, layout: int) -> Floats:
    """Return ggml's product [n_tokens, n_rows], using weights of type `kind` in a buffer of type `layout`."""
    stored, used = _arena(), _arena()
    matrix = _matrix(stored, kind, weights.shape)
    column = _matrix(used, lib.GGML_TYPE_F32, given.shape)
    result = ggml.call("ggml_mul_mat", ctypes.c_void_p, used, matrix, column)
    held = [_allocate(stored, layout), _allocate(used, ggml.cpu_buffers())]
    packed = np.empty(ggml.call("ggml_nbytes", ctypes.c_size_t, matrix), np.uint8)
    tensors.pack(weights, kind, packed)
    tensors.write(tensors.at(matrix.value), packed)
    tensors.write(tensors.at(column.value), given)
    graph = ctypes.c_void_p(ggml.call("ggml_new_graph", ctypes.c_void_p, used))
    ggml.call("ggml_build_forward_expand", None, graph, ctypes.c_void_p(result))
    backend = ctypes.c_void_p(ggml.start_cpu())
    if ggml.call("ggml_backend_graph_compute", ctypes.c_int, backend, graph) != 0:
        raise RuntimeError("ggml cannot compute the product")
    product: Floats = tensors.read(tensors.at(result), np.float32)[0, 0].copy()
    ggml.call("ggml_backend_free", None, backend)
    for buffer in held:
        ggml.call("ggml_backend_buffer_free", None, buffer)
    for arena in (stored, used):
        ggml.call("ggml_free", None, arena)
    return product


def _arena() -> Any:
    """Return a ggml context that holds only tensor descriptions."""
    return ctypes.c_void_p(ggml.call("ggml_init", ctypes.c_void_p, _InitParams(_ARENA, None, True)))


def _matrix(arena: Any, kind: int, shape: tuple[int, ...]) -> Any:
    n_rows, n_columns = map(ctypes.c_int64, shape)
    made = ggml.call("ggml_new_tensor_2d", ctypes.c_void_p, arena, ctypes.c_int(kind), n_columns, n_rows)
    return ctypes.c_void_p(made)


def _allocate(arena: Any, layout: int) -> Any:
    """Allocate and return a buffer for the arena's tensors."""
    name = "ggml_backend_alloc_ctx_tensors_from_buft"
    return ctypes.c_void_p(ggml.call(name, ctypes.c_void_p, arena, ctypes.c_void_p(layout)))
