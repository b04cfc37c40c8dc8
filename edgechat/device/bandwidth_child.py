"""The child that measures: every thread reads its part of a buffer, then multiplies matrices of its own.

A piece of work takes a millisecond or two, less than a turn on the processor, and the median piece counts:
so another program that takes turns away hardly shows.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import msgspec

from edgechat.base.process.ask import answer
from edgechat.device.bandwidth import BandwidthTask, MemorySpeed

_READ_SECONDS, _COMPUTE_SECONDS = 0.35, 0.35
_FEWEST = 5
_CHUNK = 2 * 2**20
"""Numbers that are read in one piece: 8 MiB."""
_SIDE = 512
"""Rows of the matrices: 3 MiB in all, which stay in a core's cache as llama.cpp's tiles do."""
_UNDISTURBED = 0.85
"""Share of the time that threads which never wait get on a quiet machine."""


def main() -> None:
    """Answer a BandwidthTask with a MemorySpeed."""
    # Each of our threads calls it, so it must not start more of its own; read when numpy is loaded.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ[name] = "1"
    decode, encode = msgspec.msgpack.decode, msgspec.msgpack.encode
    answer(lambda request: encode(measure(decode(request, type=BandwidthTask))))


def measure(task: BandwidthTask) -> MemorySpeed:
    """Measure both, reading first."""
    import numpy as np

    share = max(_CHUNK, task.buffer // task.threads // 4)

    def reading(barrier: Barrier) -> _Timed:
        # Filled with ones: pages that were never written are all the same page of zeros, in the cache.
        numbers = np.ones(share, np.float32)
        chunks = [numbers[start : start + _CHUNK] for start in range(0, share - _CHUNK + 1, _CHUNK)]
        return _timed(barrier, chunks, lambda chunk: np.dot(chunk, chunk), _READ_SECONDS)

    def multiplying(barrier: Barrier) -> _Timed:
        matrices = np.ones((3, _SIDE, _SIDE), np.float32)
        return _timed(barrier, [matrices], lambda m: np.matmul(m[0], m[1], out=m[2]), _COMPUTE_SECONDS)

    reads, products = _on_all(task.threads, reading), _on_all(task.threads, multiplying)
    wall, busy = sum(timed.wall for timed in reads), sum(timed.busy for timed in reads)
    return MemorySpeed(
        bandwidth=sum(4 * _CHUNK / timed.median for timed in reads),
        compute=sum(2 * _SIDE**3 / timed.median for timed in products),
        threads=task.threads,
        disturbed=busy < _UNDISTURBED * wall,
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """What a thread did: seconds for a piece of work, in all, and how many of those on a processor."""

    median: float
    wall: float
    busy: float


def _on_all(threads: int, work: Callable[[Barrier], _Timed]) -> list[_Timed]:
    barrier = Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, [barrier] * threads))


def _timed(barrier: Barrier, pieces: list[Any], work: Callable[[Any], Any], limit: float) -> _Timed:
    """Work through the pieces, again and again, until `limit` seconds are over."""
    work(pieces[0])
    barrier.wait()
    walls: list[float] = []
    begun = last = time.perf_counter()
    busy = time.thread_time()
    for piece in itertools.cycle(pieces):
        work(piece)
        now = time.perf_counter()
        walls.append(now - last)
        last = now
        if now - begun > limit and len(walls) >= _FEWEST:
            break
    return _Timed(statistics.median(walls), last - begun, time.thread_time() - busy)
