"""A target and a draft that agree to any desired degree, without training.

The draft is one random layer with peaked logits; the target starts with the same layer and has more, whose
output projections are scaled by eps. At 0 both compute the same function, at the cost ratio of a real pair;
how often they agree for other eps depends on the shape. Greedy agreement, measured:

    eps                                      0      0.05   0.1    0.15   0.3    1
    4 layers of 64, bytes                    1.00   0.95   0.87   0.75   0.64   0.14
    24 layers of 1024, vocabulary of 32000   1.00   0.60   0.54   0.26   0.10
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.build import MODELS_DIR, Spec, build
from tests.kit.shapes import Shape

PAIR = Shape(n_layers=4)


def pair(
    eps: float, *, shape: Shape = PAIR, logit_scale: float = 6.0, folder: Path = MODELS_DIR, **changes: Any
) -> tuple[Path, Path]:
    """Return the paths of (target, draft). shape: the target's; `changes` apply to both Specs."""
    target, draft = pair_of(eps, shape=shape, logit_scale=logit_scale, **changes)
    return build(target, folder=folder), build(draft, folder=folder)


def pair_of(eps: float, *, shape: Shape, logit_scale: float = 6.0, **changes: Any) -> tuple[Spec, Spec]:
    """Return the Specs of (target, draft)."""
    draft = Spec(shape=shape.sized(n_layers=1), logit_scale=logit_scale, name="draft", **changes)
    damped = dict.fromkeys(range(1, shape.n_layers), eps)
    target = Spec(shape=shape, logit_scale=logit_scale, damped=damped, name=f"target-{eps:g}", **changes)
    return target, draft
