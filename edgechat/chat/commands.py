"""Which texts are commands, `/name argument`, and what is sent of those that are none."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"/([A-Za-z][A-Za-z-]*)(?:\s+(.*))?", re.DOTALL)
"""A path, /usr/bin, is none: there is a second stroke in its first word. Nor is what begins with a blank."""


def parsed(text: str) -> tuple[str, str] | None:
    """Return the name, in small letters, and the argument of a command; None for what is to be sent."""
    found = _COMMAND.fullmatch(text.rstrip())
    return (found[1].lower(), (found[2] or "").strip()) if found else None


def sent(text: str) -> str:
    """Return what is sent of a text that is no command: of `//word` that is `/word`, else all of it."""
    return text[1:] if text.startswith("//") and parsed(text[1:]) is not None else text
