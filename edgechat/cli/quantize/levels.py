"""The mixtures that `llama_model_quantize` knows, by the names that llama-quantize gives them."""

from __future__ import annotations

import difflib

from edgechat.base.errors import NotQuantized
from edgechat.base.text import one_line
from edgechat.models.formats.quants import FILE_TYPES, canonical

_UNKNOWN_TO_LLAMA_CPP = "NVFP4"
LEVELS = {name: number for number, name in FILE_TYPES.items() if name != _UNKNOWN_TO_LLAMA_CPP}
"""Names and numbers (`general.file_type`)."""
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4_MOE": "MXFP4"}


def level_named(text: str) -> str:
    """Return the level of that name, in any spelling: 'Q4_K_M' for 'q4_k'. Raises NotQuantized."""
    name = canonical(text.strip().replace("-", "_"))
    name = _ALIASES.get(name, name)
    if name in LEVELS:
        return name
    near = difflib.get_close_matches(name, LEVELS, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Levels: {', '.join(LEVELS)}."
    raise NotQuantized(f"There is no quantization {one_line(text, 40)!r}.", hint=hint)
