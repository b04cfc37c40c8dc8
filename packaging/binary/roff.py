"""Text as the lines of a man page, in the macros of man(7) that both groff and mandoc know."""

from __future__ import annotations

import re
import textwrap

_SPECIAL = {"\\": r"\e", "-": r"\-", "~": r"\(ti", "^": r"\(ha", "'": r"\(aq", '"': r"\(dq"}
_WIDTH = 78
_CODE = re.compile(r"`([^`]+)`")


def escaped(text: str) -> str:
    """Return text so that roff prints it as it is, wherever on a line it comes to stand."""
    found = "".join(_SPECIAL.get(letter, letter) for letter in text)
    return rf"\&{found}" if found.startswith(".") else found


def bold(text: str) -> str:
    """Return text to be typed as it is."""
    return rf"\fB{escaped(text)}\fR"


def italic(text: str) -> str:
    """Return text that something is put in the place of."""
    return rf"\fI{escaped(text)}\fR"


def prose(text: str) -> str:
    """Return a paragraph in lines of customary length, with what is in backquotes as what is typed."""
    parts = _CODE.split(" ".join(text.split()))
    found = "".join(bold(part) if at % 2 else escaped(part) for at, part in enumerate(parts))
    lines = textwrap.wrap(found, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(rf"\&{line}" if line.startswith(".") else line for line in lines)


def tagged(term: str, *paragraphs: str) -> list[str]:
    """Return an entry of a list: `term` in roff, then paragraphs of text, indented."""
    lines = [".TP", term]
    for at, text in enumerate(paragraphs):
        lines += [*([".IP"] if at else []), prose(text)]
    return lines
