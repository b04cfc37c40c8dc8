"""Whether models can run through MLX here. Nothing of MLX is imported: that takes a second."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def missing() -> str:
    """Return why MLX cannot be used, as a sentence; '' where it can."""
    for name in ("mlx", "mlx_lm"):
        if importlib.util.find_spec(name) is None:
            return f"The Python package {name.replace('_', '-')} is not installed."
    return ""
