"""The parts of a formula, and how they stand beside each other: where a space or parentheses are needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from edgechat.base.latex import symbols
from edgechat.base.latex.boxes import Box, beside, stacked

Kind = Literal["", "word", "tail", "group", "large"]


class Part(NamedTuple):
    """A part of a formula, and how its neighbours stand to it.

    word: a space apart from letters and digits. tail: from those after it only. group: needs parentheses as
    the base of a script. large: has its limits above and below.
    """

    box: Box
    kind: Kind = ""

    @property
    def text(self) -> str:
        """The line on which its neighbours stand."""
        return self.box.lines[self.box.base]


SPECIAL_SUPERSCRIPTS = {"∘": "°", "*": "*", "∗": "*", "†": "†", "⊤": "ᵀ"}
_SCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎′°"
FACTOR = re.compile(
    rf"[√∛∜]?(?:\d+(?:[.,]\d+)?|[d∂]?[^\W\d_][\u0300-\u036f\u20d0-\u20ff]?|[∞½⅓¼])[{_SCRIPT}ᵃ-ᶻⁱⁿᴬ-ᵂⱽₐ-ₜᵢ-ᵪⱼ]*(?:\\([^()]*\\))?"
)
"""What needs no parentheses as a denominator: a number, or a letter with its scripts, or f(x)."""
PRODUCT = re.compile(rf"(?:[\w{_SCRIPT}\u0300-\u036f\u20d0-\u20ff√∛∜∞.·!∂]|\([^()]*\))+")
"""What needs none as a numerator."""


def operand(text: str, simple: re.Pattern[str]) -> str:
    """Return a text, in parentheses unless it is as simple as this."""
    return text if simple.fullmatch(text) or _is_enclosed(text) else f"({text})"


def _is_enclosed(text: str) -> bool:
    """Return whether the first and the last character are parentheses of one pair."""
    if text[:1] != "(" or text[-1:] != ")":
        return False
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at == len(text) - 1
    return False


def script(text: str, table: dict[int, int], sign: str) -> str:
    """Return a superscript or a subscript; where a character is missing from the table, after ^ or _."""
    if not text:
        return ""
    if (small := symbols.scripted(text.replace(" ", ""), table)) is not None:
        return small
    is_name = sign == "_" and text.isascii() and text.isalpha()
    return f"{sign}{text}" if len(text) == 1 or is_name else f"{sign}({text})"


def with_limits(sign: Box, above: str, below: str) -> Part:
    """Return a sign with its limits above and below it."""
    boxes = [Box((above,))] if above else []
    boxes += [sign, *([Box((below,))] if below else [])]
    return Part(stacked(boxes, 1 if above else 0), "word")


def joined(parts: Sequence[Part]) -> Part:
    """Join the parts of a row, with spaces where they would run into each other."""
    if len(parts) == 1:
        return parts[0]
    boxes: list[Box] = []
    before: Part | None = None
    for part in parts:
        first, last = part.text[:1], before.text[-1:] if before is not None else " "
        if not first and part.box.width == 0:
            continue
        if before is None and part.text.strip() in ("±", "∓"):
            part = part._replace(box=Box((part.text.strip(),)))
        elif first == " " and last == " " and part.box.height == 1:
            part = part._replace(box=Box((part.text.lstrip(),)))
        elif before is not None and _apart(before, part, last, first):
            boxes.append(Box((" ",)))
        if first and first in "⌋⌉⟩" and before is not None and before.text == " ":
            boxes.pop()
        if part.box.width:
            boxes.append(part.box)
            before = part
    return Part(beside(boxes))


def _apart(before: Part, part: Part, last: str, first: str) -> bool:
    if " " in (last, first):
        return False
    follows = before.kind in ("word", "tail", "large") and (first.isalnum() or first in "√∛∜∫∑∏⟨")
    leads = part.kind in ("word", "large") and (last.isalnum() or last in ")]′°!")
    return follows or leads
