"""Random weights, created directly in the form in which a GGUF stores them.

Quantizing f32 takes minutes at 1B; random blocks with sane scales take seconds and run at the same speed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

Bytes = npt.NDArray[np.uint8]
Blocks = Callable[[np.random.Generator, int, float], Bytes]

CHUNK_ROWS_BYTES = 32 << 20


def generator(seed: int, name: str) -> np.random.Generator:
    """Return a tensor's generator: models with the same seed, name and shape share the weights."""
    return np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))


def n_bytes(shape: tuple[int, ...], kind: Type) -> int:
    """Return a tensor's size in bytes. Raises ValueError if its rows are not whole blocks."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if shape[0] % block:
        raise ValueError(f"rows of {shape[0]} do not divide into {kind.name} blocks of {block}")
    return int(np.prod(shape, dtype=np.int64)) // block * size


def _scales(rng: np.random.Generator, n: int, scale: float) -> Bytes:
    """Return n fp16 scales around `scale`, uint8 [n, 2]; random signs keep the weights' mean at zero."""
    spread = rng.uniform(0.75, 1.25, n) * rng.choice(np.array([-1.0, 1.0]), n)
    scales: Bytes = (spread * scale).astype(np.float16).view(np.uint8)
    return scales.reshape(n, 2)


def _q4_0(rng: np.random.Generator, n: int, std: float) -> Bytes:
    # w = d * (q - 8), q uniform in 0..15
    return np.hstack([_scales(rng, n, std / 4.64), rng.integers(0, 256, (n, 16), np.uint8)])


def _q8_0(rng: np.random.Generator, n: int, std: float) -> Bytes:
    return np.hstack([_scales(rng, n, std / 73.9), rng.integers(0, 256, (n, 32), np.uint8)])


def _q4_k(rng: np.random.Generator, n: int, std: float) -> Bytes:
    # w = d * 32 * q - dmin * 32, q uniform in 0..15; all packed 6-bit scales and minima are 32.
    d = (rng.uniform(0.75, 1.25, n) * (std / (32 * 4.61))).astype(np.float16)
    dmin = (d.astype(np.float32) * 7.5).astype(np.float16)
    packed = np.array([160] * 8 + [0] * 4, np.uint8)
    head = np.hstack(
        [d.view(np.uint8).reshape(n, 2), dmin.view(np.uint8).reshape(n, 2), np.tile(packed, (n, 1))]
    )
    return np.hstack([head, rng.integers(0, 256, (n, 128), np.uint8)])


def _q6_k(rng: np.random.Generator, n: int, std: float) -> Bytes:
    # w = d * scale * (q - 32), q uniform in 0..63, scales +-64
    quants = rng.integers(0, 256, (n, 192), np.uint8)
    scales = rng.choice(np.array([-64, 64], np.int8), (n, 16)).view(np.uint8)
    return np.hstack([quants, scales, _scales(rng, n, std / (64 * 18.48))])


BLOCKS: dict[Type, Blocks] = {Type.Q4_0: _q4_0, Type.Q8_0: _q8_0, Type.Q4_K: _q4_k, Type.Q6_K: _q6_k}
FLOATS: dict[Type, type[np.floating[Any]]] = {
    Type.F32: np.float32,
    Type.F16: np.float16,
    Type.F64: np.float64,
}


def _rows(rng: np.random.Generator, n_rows: int, width: int, kind: Type, std: float) -> Bytes:
    if kind in FLOATS:
        values = rng.standard_normal((n_rows, width), np.float32) * np.float32(std)
        return values.astype(FLOATS[kind]).view(np.uint8).reshape(n_rows, -1)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    per_row = width // block
    return BLOCKS[kind](rng, n_rows * per_row, std).reshape(n_rows, per_row * size)


def matrix(seed: int, name: str, shape: tuple[int, ...], kind: Type, std: float) -> Bytes:
    """Return a random tensor as raw bytes, uint8 [rows, bytes per row].

    shape: in ggml's order. std: standard deviation of the weights; 0 gives exact zeros.
    """
    if kind not in FLOATS and kind not in BLOCKS:
        raise ValueError(f"the kit makes no {kind.name}")
    n_rows = int(np.prod(shape[1:], dtype=np.int64))
    row_bytes = n_bytes(shape, kind) // n_rows
    rng = generator(seed, name)
    out = np.empty((n_rows, row_bytes), np.uint8)
    step = max(1, CHUNK_ROWS_BYTES // row_bytes)
    for start in range(0, n_rows, step):
        stop = min(start + step, n_rows)
        out[start:stop] = _rows(rng, stop - start, shape[0], kind, std)
    return out


def full(shape: tuple[int, ...], kind: Type, number: float = 1.0) -> Bytes:
    """Return a tensor filled with one number (ones for a norm's weights) as raw bytes."""
    return np.full(shape[::-1], number, FLOATS[kind]).reshape(1, -1).view(np.uint8)
