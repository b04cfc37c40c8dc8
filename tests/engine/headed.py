"""Plans for models with draft heads, of each kind that tests/kit/heads makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgechat.planner.plan import DraftKind, DraftPlan, LoadPlan, params_of
from tests.engine.runtimes import plan
from tests.kit.heads import MTP, Pair, eagle3_pair, gemma4_pair, split_head, with_head

PAIRS: dict[str, tuple[Callable[[], Pair], DraftKind]] = {
    "mtp-qwen35": (lambda: split_head("qwen35"), "mtp"),
    "gemma4": (gemma4_pair, "mtp"),
    "eagle3": (eagle3_pair, "eagle3"),
}
"""Kinds whose heads are in separate files."""
HEADS = (*MTP, *PAIRS)
HYBRID = ("qwen35", "mtp-qwen35")


def headed(kind: str, **changes: Any) -> LoadPlan:
    """Return the plan that loads a model with its head."""
    if kind in MTP:
        return plan(with_head(kind), mtp=True, **changes)
    made, draft_kind = PAIRS[kind]
    pair = made()
    params = params_of(plan(pair.drafter, **changes)) | {"mtp": draft_kind == "mtp"}
    draft = DraftPlan(**params, kind=draft_kind, model_path=str(pair.drafter), model_name=kind)
    return plan(pair.target, draft=draft, **changes)
