"""Translates LoadParams into llama.cpp's parameters for devices and layers.

The file is always memory-mapped. The pages of a tensor that is on a device are read once and reclaimed when
the kernel needs memory, so they do not count twice (see `params.counted_once`). Metal is the exception: it
makes one buffer of everything between its first and last mapped tensors, which may include the CPU's share.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib

from edgechat.base.errors import LoadFailed
from edgechat.native import ggml
from edgechat.native.accelerators import rpc
from edgechat.native.params import LoadParams


class _Override(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Placement:
    """Arrays that llama.cpp reads for as long as the model is loaded."""

    def __init__(self, load: LoadParams) -> None:
        """Look up the devices. Raises ServerRefused, and LoadFailed if a device is missing."""
        most = int(lib.llama_max_devices())
        if len(load.devices) != len(load.split) or len(load.devices) > most:
            raise LoadFailed(
                f"The layer split has {len(load.split)} numbers for {len(load.devices)} devices: llama.cpp "
                f"requires one for each, for up to {most}."
            )
        rpc.register(load.rpc)
        # An empty list means no devices; a missing list would mean all.
        self._devices = (ctypes.c_void_p * (len(load.devices) + 1))(*ggml.device_handles(load.devices))
        # llama.cpp divides both the running sums of these numbers and the layer numbers by the total. The
        # results are exact for integers.
        self._split = (ctypes.c_float * most)(*load.split)
        self._overrides = (_Override * 2)()
        self._keeps_experts = bool(load.devices and load.experts_in_ram)
        if self._keeps_experts:
            self._overrides[0] = _Override(
                experts_of_first(load.experts_in_ram).encode(),
                ggml.call("ggml_backend_cpu_buffer_type", ctypes.c_void_p),
            )

    def apply(self, params: Any, load: LoadParams) -> None:
        """Make llama_model_params point to the arrays."""
        params.devices = ctypes.addressof(self._devices)
        params.n_gpu_layers = load.gpu_layers
        params.split_mode = lib.LLAMA_SPLIT_MODE_LAYER
        params.tensor_split = ctypes.cast(self._split, ctypes.POINTER(ctypes.c_float))
        if self._keeps_experts:  # even an empty list would disable pipelining between devices
            params.tensor_buft_overrides = ctypes.addressof(self._overrides)


def experts_of_first(n_layers: int) -> str:
    """Return a pattern for the expert tensors in the first `n_layers` layers (llama.cpp's --n-cpu-moe)."""
    layers = "|".join(str(layer) for layer in range(n_layers))
    return rf"blk\.({layers})\.ffn_(up|down|gate|gate_up)_(ch|)exps"
