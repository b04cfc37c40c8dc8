"""Availability of MLX, checked without importing it, which would take a second."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache

from edgechat.base.process.spawn import frozen

_VISION = "mlx-vlm>=0.7.10,<0.8"
"""The same requirement as in pyproject.toml."""


@cache
def missing() -> str:
    """Return why MLX cannot be used, as a sentence; '' if it can."""
    for name in ("mlx", "mlx_lm"):
        if importlib.util.find_spec(name) is None:
            if frozen():
                return "This build of edgechat does not include MLX."
            return f"The Python package {name.replace('_', '-')} is not installed."
    return ""


def missing_vision() -> str:
    """Return why MLX models cannot see images, as a sentence that names the remedy; '' if they can."""
    if importlib.util.find_spec("mlx_vlm") is not None:
        return ""
    if frozen():
        return "This build of edgechat does not include mlx-vlm, which MLX models need for images."
    install = f"{sys.executable} -m pip install '{_VISION}'"
    return f"For images, MLX models need the Python package mlx-vlm, which is not installed ({install})."


def version() -> str:
    """Return the installed versions of MLX for display: 'mlx 0.32.0, mlx-lm 0.32.2'."""
    import importlib.metadata  # takes 8 ms and is needed only for MLX models

    packages = []
    for name in ("mlx", "mlx-lm"):
        try:
            packages.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:  # in a frozen program
            packages.append(name)
    return ", ".join(packages)
