"""libmtmd as bound by llama-cpp-python. Importing this module raises BackendMissing if the build lacks it."""

from __future__ import annotations

from edgechat.base.errors import BackendMissing

try:
    import llama_cpp.mtmd_cpp as lib
except (OSError, RuntimeError, AttributeError) as error:  # missing, not loadable, or the wrong version
    raise BackendMissing(
        f"This llama-cpp-python supports neither images nor audio: {error}.",
        hint="Rebuild it: pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python",
    ) from error

library = lib._libmtmd
"""The shared library, for functions that llama_cpp does not bind. llama_cpp has no public name for it."""
__all__ = ["lib", "library"]
