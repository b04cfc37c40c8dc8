"""Which tensor gets which type: the least loss that a size allows.

Losses add up (they are small), so this is a multiple-choice knapsack. Of each tensor only the types on the
lower convex hull of (bytes, loss) are of use; all tensors start with the smallest, and the step that saves
most loss for each byte is taken next, until no step fits. With hundreds of tensors that is as good as
optimal: what is left over is smaller than one step. (H. Kellerer et al., Knapsack Problems, 2004, ch. 11.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

_NOTHING = 1e-7
"""Nats that are not worth a byte: of weights that lie on the grid of a type already."""


class TensorOption(msgspec.Struct, frozen=True):
    """A type that a tensor may get."""

    type: str
    """As `GgmlType` names it."""
    n_bytes: int
    loss: float
    """What it adds to the divergence, in nats."""


Options = Mapping[str, Sequence[TensorOption]]


def least_bytes(options: Options) -> int:
    """Return the smallest size of all tensors together."""
    return sum(min(option.n_bytes for option in choices) for choices in options.values())


def allocate(options: Options, budget: int) -> dict[str, TensorOption]:
    """Return an option for each tensor, together in `budget` bytes; `budget` is not below `least_bytes`."""
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
        if chosen[name] is below and cost <= left:  # else a step before this one did not fit
            chosen[name] = above
            left -= cost
    return chosen


def _hull(choices: Sequence[TensorOption]) -> list[TensorOption]:
    """Return the options on the lower convex hull, from small to large: each step saves less for a byte."""
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
