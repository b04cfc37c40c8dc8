"""In the child process: text as readers find it, made harmless and even."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from edgechat.base.text import printable

PAGE = "\f"
"""What each page, chapter or cell begins with; no text has it."""
LONGEST_LINE = 2000
"""Characters; longer ones are broken at spaces."""
_LIGATURES = ("ff", "fi", "fl", "ffi", "ffl", "st", "st")
_LETTERS = str.maketrans(
    {0xFB00 + n: letters for n, letters in enumerate(_LIGATURES)}
    | {"\u00ad": None, "\u200b": None, "\ufeff": None, "\u00a0": " "}
)
"""What looks like other text and is not found by it; soft hyphens."""
_BROKEN = re.compile(rf".{{1,{LONGEST_LINE}}}(?= |$)|.{{1,{LONGEST_LINE}}}")


def tidied(pieces: Iterator[str]) -> Iterator[str]:
    """Yield whole lines, without control characters, spaces at their ends and blank lines in a row.

    pieces: text, with PAGE at the beginning of the first piece of each page.
    """
    rest, gap, is_begun = "", "", False
    for piece in chain(pieces, "\n"):
        kept = []
        if piece.startswith(PAGE):
            kept = [f"{rest}\n" if rest else gap, PAGE]
            rest, gap, is_begun = "", "", False
        *lines, rest = (rest + _harmless(piece)).split("\n")
        if len(rest) > LONGEST_LINE:
            *more, rest = _broken(rest)
            lines += more
        for line in map(str.rstrip, lines):
            if line:
                parts = _broken(line) if len(line) > LONGEST_LINE else [line]
                kept += (gap, *(f"{part}\n" for part in parts))
                gap, is_begun = "", True
            elif is_begun:
                gap = "\n"
        yield "".join(kept)


def _broken(line: str) -> list[str]:
    return [part.lstrip() for part in _BROKEN.findall(line)]


def _harmless(text: str) -> str:
    return printable(text.replace("\r\n", "\n").replace("\r", "\n")).translate(_LETTERS)
