"""The load of the small model that drafts for another one."""

from __future__ import annotations

from collections.abc import Callable

from edgechat.engine.backends.base import Backend
from edgechat.engine.speculative.drafters import ModelDrafter
from edgechat.errors import EdgechatError
from edgechat.planner.plan import LoadPlan

Make = Callable[[LoadPlan], Backend]


def load_draft(plan: LoadPlan | None, target: Backend, make: Make) -> tuple[ModelDrafter | None, str]:
    """Return the drafter, or None and why there is none: nobody is kept from chatting by a draft.

    make: loads a plan.
    """
    if plan is None:
        return None, ""
    try:
        backend = make(plan)
    except EdgechatError as error:
        return None, f"{plan.model_name} does not draft for it. {error.message}"
    why = target.vocabulary.misfit(backend.vocabulary)
    # It computes a token at a time, and may have to go back over several calls.
    if not why and (not backend.rolls_back or backend.capabilities.recomputes):
        why = "its state cannot take back what it guessed"
    if not why and backend.context < target.context:
        why = f"it looks back on {backend.context} tokens, not {target.context}"
    if why:
        backend.close()
        return None, f"{plan.model_name} cannot draft for it: {why}."
    return ModelDrafter(backend, target.vocabulary.size), ""
