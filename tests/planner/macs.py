"""Imaginary Macs, for plans with MLX."""

from __future__ import annotations

from dataclasses import replace

from edgechat.device.accelerators import GpuReading, merge
from edgechat.device.gpu_readings import metal
from edgechat.device.profile import DeviceProfile
from edgechat.models.formats.header import ModelHeader
from edgechat.models.local.resolve import entry_of
from edgechat.models.shipped import mlx_header_of
from edgechat.planner.candidates import Variant, of_entry
from tests.planner import golden

MACS = ((8, 100), (16, 120), (64, 400))
"""GiB and GB/s: an M2, an M4, an M3 Max."""


def mac(gigabytes: int, bandwidth: float = 120, *, mlx: bool = True, ggml: bool = True) -> DeviceProfile:
    """Return a Mac with MLX, and a llama.cpp that supports Metal."""
    found = golden.profile(gigabytes, bandwidth=bandwidth * 1e9)
    gpu = metal(found.memory.total, "Apple M9")
    ours = GpuReading(
        source="ggml",
        vendor="apple",
        name="Apple M9",
        device="MTL0",
        shares_ram=True,
        total=gpu.total,
        free=gpu.free,
    )
    seen = [ours, gpu] if ggml else [gpu]
    return replace(found, accelerators=merge(seen, found.memory), mlx=mlx)


def for_mlx(name: str, label: str = "4bit") -> ModelHeader:
    """Return an approximate MLX header for a model in the catalogue."""
    entry = entry_of(name)
    assert entry is not None
    found = mlx_header_of(entry, label)
    assert found is not None
    return found


def files_of(name: str) -> list[Variant]:
    """Return the files of a model in the catalogue, for llama.cpp and MLX."""
    entry = entry_of(name)
    assert entry is not None
    return of_entry(entry)
