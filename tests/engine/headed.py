"""How models with draft heads are loaded in tests: of each kind that tests/kit/heads makes."""

from __future__ import annotations

from typing import Any

from edgechat.planner.plan import DraftPlan, LoadPlan, params_of
from tests.engine.runtimes import plan
from tests.kit.heads import MTP, eagle3_pair, with_head

HEADS = (*MTP, "eagle3")


def headed(kind: str, **changes: Any) -> LoadPlan:
    """Return how a model is loaded with its head, which EAGLE-3 has in a file of its own."""
    if kind != "eagle3":
        return plan(with_head(kind), mtp=True, **changes)
    made = eagle3_pair()
    params = params_of(plan(made.drafter, **changes))
    draft = DraftPlan(**params, kind="eagle3", model_path=str(made.drafter), model_name="eagle3")
    return plan(made.target, draft=draft, **changes)
