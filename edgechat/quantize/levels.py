"""The mixtures that llama.cpp knows by name, and the types that mixtures of our own are made of."""

from __future__ import annotations

import difflib
import re

from edgechat.base.errors import NotQuantized
from edgechat.base.text import one_line
from edgechat.models.formats.header import ModelTensor
from edgechat.models.formats.quants import FILE_TYPES, GgmlType, canonical

_UNKNOWN_TO_LLAMA_CPP = "NVFP4"
LEVELS = {name: number for number, name in FILE_TYPES.items() if name != _UNKNOWN_TO_LLAMA_CPP}
"""Names and numbers (`general.file_type`)."""
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4_MOE": "MXFP4"}

_K_TYPES = (
    GgmlType.Q2_K,
    GgmlType.Q3_K,
    GgmlType.IQ4_XS,
    GgmlType.Q4_K,
    GgmlType.Q5_K,
    GgmlType.Q6_K,
    GgmlType.Q8_0,
)
_SHORT_TYPES = (
    GgmlType.Q4_0,
    GgmlType.IQ4_NL,
    GgmlType.Q4_1,
    GgmlType.Q5_0,
    GgmlType.Q5_1,
    GgmlType.Q8_0,
)
"""For rows that are no multiple of 256."""
_KEPT = re.compile(r"\bssm_out\.weight$")
"""What recurrent layers cannot do with fewer than 8 bits."""


def level_named(text: str) -> str:
    """Return the level of that name, in any spelling: 'Q4_K_M' for 'q4_k'. Raises NotQuantized."""
    name = canonical(text.strip().replace("-", "_"))
    name = _ALIASES.get(name, name)
    if name in LEVELS:
        return name
    near = difflib.get_close_matches(name, LEVELS, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Levels: {', '.join(LEVELS)}."
    raise NotQuantized(f"There is no quantization {one_line(text, 40)!r}.", hint=hint)


def types_for(tensor: ModelTensor) -> tuple[GgmlType, ...]:
    """Return the types that a tensor may get; the last one is that of the source, or 16 bits of it."""
    own = GgmlType.F16 if tensor.type is GgmlType.F32 else tensor.type
    columns = tensor.shape[0]
    if _KEPT.search(tensor.name):
        kinds: tuple[GgmlType, ...] = (GgmlType.Q8_0,)
    else:
        kinds = _SHORT_TYPES if columns % GgmlType.Q4_K.block[0] else _K_TYPES
    return (*(kind for kind in kinds if columns % kind.block[0] == 0), own)
