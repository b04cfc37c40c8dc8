"""How models mark their reasoning, and how a template lets it be switched.

The marks are read off the chat template. They are looked for in the text of a reply, with the control
tokens that they are made of rendered.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgechat.engine.types import Effort


@dataclass(frozen=True, slots=True)
class Marks:
    """A family's way: the text that opens a thought, the one that closes it, and what may precede answers."""

    sign: str
    """Found in the template of this family."""
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
    """Return the template variables for thinking; nothing where it is left to the template."""
    found: dict[str, bool | str] = {} if think is None else {_SWITCH: think}
    return found if effort is None else found | {_EFFORT: effort}
