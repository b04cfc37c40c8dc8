"""Formats text as lines of a man page, using man(7) macros that both groff and mandoc support."""

from __future__ import annotations

import re
import textwrap

_SPECIAL = {"\\": r"\e", "-": r"\-", "~": r"\(ti", "^": r"\(ha", "'": r"\(aq", '"': r"\(dq"}
_WIDTH = 78
_CODE = re.compile(r"`([^`]+)`")


def escaped(text: str) -> str:
    """Return text escaped so that roff prints it unchanged, even at the start of a line."""
    found = "".join(_SPECIAL.get(letter, letter) for letter in text)
    return rf"\&{found}" if found.startswith(".") else found


def bold(text: str) -> str:
    """Return text in bold, for literal input."""
    return rf"\fB{escaped(text)}\fR"


def italic(text: str) -> str:
    """Return text in italics, for placeholders."""
    return rf"\fI{escaped(text)}\fR"


def prose(text: str) -> str:
    """Return a paragraph wrapped to the usual width, with backquoted text in bold."""
    parts = _CODE.split(" ".join(text.split()))
    found = "".join(bold(part) if at % 2 else escaped(part) for at, part in enumerate(parts))
    lines = textwrap.wrap(found, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(rf"\&{line}" if line.startswith(".") else line for line in lines)


def tagged(term: str, *paragraphs: str) -> list[str]:
    """Return a list entry: `term`, in roff, then indented paragraphs of plain text."""
    lines = [".TP", term]
    for at, text in enumerate(paragraphs):
        lines += [*([".IP"] if at else []), prose(text)]
    return lines
