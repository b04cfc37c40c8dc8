"""Decoding."""

from __future__ import annotations

from pathlib import Path

from edgechat.images.image import Pixels


def pixels(path: Path) -> Pixels:
    """Return the pixels."""
    from PIL import Image

    with Image.open(path) as image:
        rgb = image.convert("RGB")
        return Pixels(rgb.width, rgb.height, rgb.tobytes())
