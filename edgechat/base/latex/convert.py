r"""LaTeX formulas as Unicode text: in a line, or displayed on several.

A formula is converted as a whole or not at all: what is not understood stays as the model wrote it. It is
code of our own, since the libraries drop commands they do not know (pylatexenc), leave a mixture of both
(unicodeit), or know neither matrices nor bounds on hostile input (flatlatex).
"""

from __future__ import annotations

from functools import lru_cache

from edgechat.base.latex.boxes import Box, TooLarge
from edgechat.base.latex.reader import Reader, Unconvertible

_LONGEST = 2000
"""Characters of a formula; what is longer stays as it is."""


@lru_cache(maxsize=1024)
def in_line(formula: str) -> str | None:
    """Return a formula as one line of Unicode; None if it cannot be converted."""
    box = _converted(formula, tall=False)
    return box.lines[0].strip() if box is not None else None


@lru_cache(maxsize=256)
def displayed(formula: str) -> tuple[str, ...] | None:
    """Return a formula as lines of Unicode, fractions and matrices set; None if it cannot be converted."""
    box = _converted(formula, tall=True)
    return tuple(line.rstrip() for line in box.lines) if box is not None else None


def _converted(formula: str, *, tall: bool) -> Box | None:
    if len(formula) > _LONGEST:
        return None
    try:
        box = Reader(formula.strip(), tall=tall).whole()
    except (Unconvertible, TooLarge):
        return None
    return box if any(line.strip() for line in box.lines) else None
