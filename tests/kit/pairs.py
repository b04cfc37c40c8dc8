"""A target and a draft that agree as often as wished, without training either.

The draft is one random layer with peaked logits; the target is the same layer and then more, whose output
projections are scaled by eps. At 0 both compute the same function, at the cost ratio of a real pair.
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
    """Return the paths of (target, draft). shape: of the target; `changes` go to both Specs."""
    draft = Spec(shape=shape.sized(n_layers=1), logit_scale=logit_scale, name="draft", **changes)
    damped = dict.fromkeys(range(1, shape.n_layers), eps)
    target = Spec(shape=shape, logit_scale=logit_scale, damped=damped, name=f"target-{eps:g}", **changes)
    return build(target, folder=folder), build(draft, folder=folder)
