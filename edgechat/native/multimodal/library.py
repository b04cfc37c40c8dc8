"""libmtmd as llama-cpp-python binds it; importing this raises BackendMissing where it was built without."""

from __future__ import annotations

from edgechat.base.errors import BackendMissing

try:
    import llama_cpp.mtmd_cpp as lib
except (OSError, RuntimeError, AttributeError) as error:  # no file, not loadable, of another version
    raise BackendMissing(
        f"This llama-cpp-python cannot show pictures to models, or play sounds: {error}.",
        hint="Build it anew: pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python",
    ) from error

__all__ = ["lib"]
