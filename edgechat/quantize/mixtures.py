"""Tensor types: llama.cpp's named mixtures, and custom mixtures with the lowest loss for a given size."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from edgechat.base.errors import NotQuantized
from edgechat.base.text import one_line
from edgechat.models.formats.header import ModelTensor
from edgechat.models.formats.quants import FILE_TYPES, GgmlType, canonical

_NOTHING = 1e-7
"""Largest difference in loss, in nats, that is not worth even one byte. Such differences occur, for example,
when a smaller type can already represent the weights exactly.
"""


class TensorOption(msgspec.Struct, frozen=True):
    """A type that a tensor could be stored in."""

    type: str
    """The type's name in `GgmlType`."""
    n_bytes: int
    loss: float
    """How much the tensor contributes to the model's divergence if stored in this type, in nats."""


Options = Mapping[str, Sequence[TensorOption]]


def least_bytes(options: Options) -> int:
    """Return the smallest possible total size of all the tensors, in bytes."""
    return sum(min(option.n_bytes for option in choices) for choices in options.values())


def allocate(options: Options, budget: int) -> dict[str, TensorOption]:
    """Choose an option for each tensor, within a budget in bytes that is at least `least_bytes`.

    The losses are small and simply add up, so this is a multiple-choice knapsack problem. For each tensor,
    only the types on the lower convex hull of (bytes, loss) matter. Every tensor starts out with its smallest
    type. The step that saves the most loss per byte is then taken repeatedly, until no other step fits. With
    hundreds of tensors, the result is practically optimal: the unused budget is smaller than one step.
    (H. Kellerer et al., Knapsack Problems, 2004, ch. 11.)
    """
    hulls = {name: _hull(choices) for name, choices in options.items()}
    chosen = {name: hull[0] for name, hull in hulls.items()}
    left = budget - sum(option.n_bytes for option in chosen.values())
    steps = [
        ((below.loss - above.loss) / (above.n_bytes - below.n_bytes), name, below, above)
        for name, hull in hulls.items()
        for below, above in pairwise(hull)
        if below.loss - above.loss > _NOTHING
    ]
    for _, name, below, above in sorted(steps, key=lambda step: -step[0]):
        cost = above.n_bytes - below.n_bytes
        if chosen[name] is below and cost <= left:  # otherwise, an earlier step for this tensor did not fit
            chosen[name] = above
            left -= cost
    return chosen


def _hull(choices: Sequence[TensorOption]) -> list[TensorOption]:
    """Return the options on the lower convex hull, smallest first.

    Each step saves less loss per byte than the last.
    """
    hull: list[TensorOption] = []
    for option in sorted(choices, key=lambda option: (option.n_bytes, option.loss)):
        if hull and option.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _saving(hull[-2], hull[-1]) <= _saving(hull[-2], option):
            hull.pop()
        hull.append(option)
    return hull


def _saving(below: TensorOption, above: TensorOption) -> float:
    return (below.loss - above.loss) / (above.n_bytes - below.n_bytes)


_UNKNOWN_TO_LLAMA_CPP = "NVFP4"
LEVELS = {name: number for number, name in FILE_TYPES.items() if name != _UNKNOWN_TO_LLAMA_CPP}
"""The numbers of the levels (`general.file_type`), keyed by name."""
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
"""Types that can be used for tensors whose row length is not a multiple of 256."""
_KEPT = re.compile(r"\bssm_out\.weight$")
"""Tensors in recurrent layers that need at least 8 bits per weight."""


def level_named(text: str) -> str:
    """Return the level that the user means, such as 'Q4_K_M' for 'q4_k'. Raises NotQuantized."""
    name = canonical(text.strip().replace("-", "_"))
    name = _ALIASES.get(name, name)
    if name in LEVELS:
        return name
    near = difflib.get_close_matches(name, LEVELS, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Levels: {', '.join(LEVELS)}."
    raise NotQuantized(f"{one_line(text, 40)!r} is not a known quantization level.", hint=hint)


def types_for(tensor: ModelTensor) -> tuple[GgmlType, ...]:
    """Return the types that a tensor could be stored in.

    The last one is the tensor's type in the source, or F16 if that type is F32.
    """
    own = GgmlType.F16 if tensor.type is GgmlType.F32 else tensor.type
    columns = tensor.shape[0]
    if _KEPT.search(tensor.name):
        kinds: tuple[GgmlType, ...] = (GgmlType.Q8_0,)
    else:
        kinds = _SHORT_TYPES if columns % GgmlType.Q4_K.block[0] else _K_TYPES
    return (*(kind for kind in kinds if columns % kind.block[0] == 0), own)
