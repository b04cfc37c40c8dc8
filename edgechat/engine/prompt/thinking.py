"""How models mark their reasoning, and how a template lets it be switched.

The marks are read off the chat template. They are looked for in the text of a reply, with the control
tokens that they are made of rendered.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.engine.types import Effort


@dataclass(frozen=True, slots=True)
class Marks:
    """A model family's marks: what opens and closes a thought, and what may surround answers."""

    sign: str
    """Text by which the family's template is recognized."""
    open: str
    close: str
    skip: tuple[str, ...] = ()
    """Marks before or after an answer that belong neither to the thought nor to the answer."""


HARMONY_FINAL = "<|channel|>final<|message|>"

FAMILIES = (
    Marks(
        "<|channel|>analysis<|message|>",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        ("<|start|>assistant", HARMONY_FINAL),
    ),
    Marks("<|channel>", "<|channel>thought", "<channel|>"),
    Marks("</think>", "<think>", "</think>"),
)

_SWITCH = "enable_thinking"
_EFFORT = "reasoning_effort"


def marks_of(template: str) -> Marks | None:
    """Return the marks that a template's models use, or None if they do not think."""
    return next((family for family in FAMILIES if family.sign in template), None)


def can_switch(template: str) -> bool:
    """Say whether the template has a switch for thinking."""
    return _SWITCH in template


def has_effort(template: str) -> bool:
    """Say whether the template tells the model how long to think."""
    return _EFFORT in template


def switch(think: bool | None, effort: Effort | None = None) -> dict[str, bool | str]:
    """Return the template variables for thinking; None is left to the template."""
    variables: dict[str, bool | str | None] = {_SWITCH: think, _EFFORT: effort}
    return {name: value for name, value in variables.items() if value is not None}
