"""The {variables} of a saved prompt, which are filled in before it is sent."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

_VARIABLE = re.compile(r"\{[^\W\d][\w -]{0,39}\}")

Span = tuple[int, int]
"""Where a variable is in a text, its braces included."""


def variables_in(texts: Iterable[str]) -> frozenset[str]:
    """Return the variables of saved prompts, with their braces."""
    return frozenset(name for text in texts for name in _VARIABLE.findall(text))


def next_variable(text: str, names: Collection[str], start: int) -> Span | None:
    """Return where the next of these variables is, from `start` on, else anywhere; None if there is none."""
    spans = [match.span() for match in _VARIABLE.finditer(text) if match[0] in names]
    return next((span for span in spans if span[0] >= start), spans[0] if spans else None)
