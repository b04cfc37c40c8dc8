"""llama.cpp's functions, as llama-cpp-python declares them: `lib`."""

from __future__ import annotations

import llama_cpp
import llama_cpp.llama_cpp as lib

__all__ = ["lib", "version"]


def version() -> str:
    """Return the version of llama-cpp-python."""
    return str(llama_cpp.__version__)
