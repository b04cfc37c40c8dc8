"""libmtmd as llama-cpp-python binds it. Importing this raises BackendMissing in a build without it."""

from __future__ import annotations

from edgechat.base.errors import BackendMissing

try:
    import llama_cpp.mtmd_cpp as lib
except (OSError, RuntimeError, AttributeError) as error:  # no file, not loadable, of another version
    raise BackendMissing(
        f"This llama-cpp-python cannot show pictures to models, or play sounds: {error}.",
        hint="Build it anew: pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python",
    ) from error

library = lib._libmtmd
"""The shared library, for what llama_cpp does not bind; it has no public name there."""
__all__ = ["lib", "library"]
