"""Large libraries, imported when they are used: every process imports all tests, and only some use these."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class Later:
    """A module that is imported when the first of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks whether it is a test
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def later_or_skip(name: str) -> Later:
    """Return the module to be; where it is not installed, skip the file that asks."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return Later(name)
