"""Pictures in one of eight colors, the corners of the RGB cube."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
"""RGB [height, width, 3]."""

COLOURS = {
    "black": (0, 0, 0),
    "blue": (0, 0, 255),
    "green": (0, 255, 0),
    "cyan": (0, 255, 255),
    "red": (255, 0, 0),
    "magenta": (255, 0, 255),
    "yellow": (255, 255, 0),
    "white": (255, 255, 255),
}


def plain(colour: str, width: int = 64, height: int = 64) -> Picture:
    """Return a picture in a single color."""
    return np.full((height, width, 3), COLOURS[colour], np.uint8)


def noisy(colour: str, width: int = 64, height: int = 64, *, seed: int = 0) -> Picture:
    """Return a picture whose pixels deviate randomly from a color, by up to a quarter."""
    stray = np.random.default_rng(seed).integers(-64, 65, (height, width, 3))
    return np.clip(plain(colour, width, height) + stray, 0, 255).astype(np.uint8)


def halves(left: str, right: str, width: int = 64, height: int = 64) -> Picture:
    """Return a picture with a different color in each half."""
    picture = plain(left, width, height)
    picture[:, width // 2 :] = COLOURS[right]
    return picture
