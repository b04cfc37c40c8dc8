"""Whether llama.cpp refused for want of memory: it has no code for that, only what it logs.

Known by whole messages, as the sources of llama.cpp and ggml have them: names out of a file, and the path
to it, stand in other messages, and may say anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_BEFORE = r"(?:\w+: )?(?:error: )?(?:error loading model: |failed to initialize the context: )?"
_SIZE = r" *[\d.]+ Mi?B"
_MESSAGES = (
    # ggml, for every device
    r"failed to allocate (?:\S+ )?buffer of size \d+",
    r"(?:insufficient memory|unknown allocation error) \(attempted to allocate" + _SIZE + r"\)",
    # llama.cpp
    r"unable to allocate \S+ buffer",
    r"failed to allocate compute (?:pp |tg )?buffers",
    r"failed to allocate buffer for (?:(?:kv|rs) cache|DSV4 compressor state)",
    r"failed to allocate output buffer of size" + _SIZE,
    r"failed to reserve initial output buffer",
    r"mmap failed: Cannot allocate memory",
    r"posix_memalign failed with error 12",
    r"std::bad_alloc",
    # CUDA and HIP, Metal, Vulkan, SYCL
    r"allocating" + _SIZE + r" on device \d+: \w+ failed: out of memory",
    r"failed to allocate buffer, size =" + _SIZE,
    r"Device memory allocation of size \d+ failed\.?",
    r"[\w :]+: ErrorOutOf(?:Device|Host)Memory",
    r"can't allocate \d+ Bytes of memory on (?:device|host)",
)
_NO_MEMORY = re.compile(_BEFORE + "(?:" + "|".join(_MESSAGES) + ")")


def ran_out(errors: Iterable[str]) -> bool:
    """Say whether one of these errors in llama.cpp's log tells that memory was not to be had."""
    return any(_NO_MEMORY.fullmatch(line.strip()) for line in errors)
