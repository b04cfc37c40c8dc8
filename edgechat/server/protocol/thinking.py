"""Whether and how long a model thinks, from what a request and the settings say."""

from __future__ import annotations

from typing import Literal

from edgechat.engine.types import Effort, ModelInfo

RequestedEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_EFFORTS: dict[str, Effort] = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def thinking_of(
    model: ModelInfo,
    *,
    think: bool | None,
    effort: RequestedEffort | None,
    default: bool | None,
    insists: bool = True,
) -> tuple[bool | None, Effort | None]:
    """Return whether a model is to think, and how long, as far as it can be told that.

    think: as the request switches it; effort: as it says how long; default: what the settings say for models
    that can switch it. insists: a switch that the model does not have is an error, of which the engine tells;
    agents, which switch it whatever the model is, do not insist.
    """
    told = _EFFORTS[effort] if effort is not None and model.has_effort else None
    if think is None and model.can_switch_thinking:
        think = default if effort is None else effort not in ("none", "minimal")
    elif think is None and effort == "none" and not model.has_effort:
        think = False
    return think if insists or model.can_switch_thinking else None, told
