"""The number of examples that hypothesis draws for a property."""

from __future__ import annotations

from hypothesis import settings


def examples(n: int) -> int:
    """Return n for `make test`, and fifty times as many for `make soak`."""
    return n * 50 if settings.get_current_profile_name() == "soak" else n
