"""From the rate of a file to that of a model: a windowed sinc for each phase."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

Mono = npt.NDArray[np.float32]

_ZEROS = 16
"""Zero crossings of the filter on each side."""
_ROLL_OFF = 0.94
"""Where the filter ends, of what the lower rate can carry."""
_BLOCK = 1 << 16
"""Samples that are made at once."""


def resampled(sound: Mono, rate: int, to: int) -> Mono:
    """Return a sound at another rate, as long as before: J. O. Smith's bandlimited interpolation.

    With the rates as a fraction up / down, every up-th sample has the same filter, and its inputs are `down`
    apart.
    """
    if rate == to or not len(sound):
        return sound
    shared = math.gcd(rate, to)
    up, down = to // shared, rate // shared
    cutoff = _ROLL_OFF * min(1.0, to / rate)
    half = math.ceil(_ZEROS / cutoff)
    n = -(-len(sound) * up // down)
    padded = np.zeros(len(sound) + 2 * half + down + 1, np.float32)
    padded[half : half + len(sound)] = sound
    made = np.empty(n, np.float32)
    for phase in range(min(up, n)):
        first, rest = divmod(phase * down, up)
        weights = _filter(rest / up, cutoff, half)
        count = len(range(phase, n, up))
        for at in range(0, count, _BLOCK):
            rows = min(_BLOCK, count - at)
            start = padded[first + at * down + 1 :]
            windows = as_strided(start, (rows, 2 * half), (down * padded.itemsize, padded.itemsize))
            made[phase + at * up : phase + (at + rows - 1) * up + 1 : up] = windows.copy() @ weights
    return made


def _filter(fraction: float, cutoff: float, half: int) -> Mono:
    """Return the weights of the 2 * half inputs around a place between the two in the middle."""
    distances = np.arange(1 - half, half + 1) - fraction
    window = np.cos(np.clip(distances / half, -1, 1) * np.pi / 2) ** 2
    weights = np.sinc(cutoff * distances) * window
    made: Mono = (weights / weights.sum()).astype(np.float32)
    return made
