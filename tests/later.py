"""Lazy imports of large libraries: every process imports all tests, but few of them use these."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class Later:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest checks whether it is a test
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def later_or_skip(name: str) -> Later:
    """Return a lazy module; if it is not installed, skip the file that called this."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return Later(name)
