"""Layout of formulas: spaces and parentheses between their parts, and boxes that span several lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.cells import cell_len

from edgechat.base.latex import symbols
from edgechat.base.latex.symbols import TALL

Kind = Literal["", "word", "tail", "group", "large"]


class Part(NamedTuple):
    """A part of a formula, and its spacing.

    Kinds: 'word' is separated by a space from adjacent letters and digits, 'tail' only from those that follow
    it. 'group' needs parentheses as the base of a script. 'large' has limits above and below.
    """

    box: Box
    kind: Kind = ""

    @property
    def text(self) -> str:
        """The line that is aligned with the neighboring parts."""
        return self.box.lines[self.box.base]


SPECIAL_SUPERSCRIPTS = {"∘": "°", "*": "*", "∗": "*", "†": "†", "⊤": "ᵀ"}
_SCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎′°"
FACTOR = re.compile(
    rf"[√∛∜]?(?:\d+(?:[.,]\d+)?|[d∂]?[^\W\d_][\u0300-\u036f\u20d0-\u20ff]?|[∞½⅓¼])[{_SCRIPT}ᵃ-ᶻⁱⁿᴬ-ᵂⱽₐ-ₜᵢ-ᵪⱼ]*(?:\\([^()]*\\))?"
)
"""Denominators that need no parentheses: a number, a letter with its scripts, or f(x)."""
PRODUCT = re.compile(rf"(?:[\w{_SCRIPT}\u0300-\u036f\u20d0-\u20ff√∛∜∞.·!∂]|\([^()]*\))+")
"""Numerators that need no parentheses."""


def operand(text: str, simple: re.Pattern[str]) -> str:
    """Return `text`, in parentheses unless it matches `simple`."""
    return text if simple.fullmatch(text) or _is_enclosed(text) else f"({text})"


def _is_enclosed(text: str) -> bool:
    """Return whether the first and last characters are a matching pair of parentheses."""
    if text[:1] != "(" or text[-1:] != ")":
        return False
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at == len(text) - 1
    return False


def script(text: str, table: dict[int, int], sign: str) -> str:
    """Return a superscript or subscript, with a ^ or _ sign if the table lacks any of its characters."""
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
    """Join the parts of a row, with spaces where they would run together."""
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


_LARGEST = 20_000
"""Maximum size of a box in terminal cells, enough for many screens."""
_MOST_CELLS = 2000
"""Maximum number of entries in a matrix."""


class TooLarge(ValueError):
    """A box has more cells than the limit."""


@dataclass(frozen=True, slots=True)
class Box:
    """Lines of equal width. The line at index `base` is aligned with neighboring boxes."""

    lines: tuple[str, ...]
    base: int = 0

    @classmethod
    def of(cls, lines: Sequence[str], base: int = 0) -> Box:
        """Return a box of lines, padded on the right. Raises TooLarge."""
        width = max(map(cell_len, lines), default=0)
        if width * len(lines) > _LARGEST:
            raise TooLarge
        return cls(tuple(line + " " * (width - cell_len(line)) for line in lines), base)

    @property
    def width(self) -> int:
        """Width in terminal cells."""
        return cell_len(self.lines[0])

    @property
    def height(self) -> int:
        """Height in lines."""
        return len(self.lines)

    def padded(self, above: int, below: int) -> Box:
        """Return the box with empty lines above and below."""
        blank = " " * self.width
        return Box((blank,) * above + self.lines + (blank,) * below, self.base + above)

    def aligned(self, width: int, align: str) -> Box:
        """Return the box padded to a width. align: '<', '^' or '>'."""
        room = width - self.width
        left = {"<": 0, "^": room // 2, ">": room}[align]
        return Box(tuple(" " * left + line + " " * (room - left) for line in self.lines), self.base)


def beside(boxes: Sequence[Box]) -> Box:
    """Place boxes side by side. Raises TooLarge."""
    above = max((box.base for box in boxes), default=0)
    below = max((box.height - box.base for box in boxes), default=1)
    if (above + below) * sum(box.width for box in boxes) > _LARGEST:
        raise TooLarge
    level = [box.padded(above - box.base, below - (box.height - box.base)).lines for box in boxes]
    return Box.of(["".join(parts) for parts in zip(*level, strict=True)] or [""], above)


def stacked(boxes: Sequence[Box], base: int) -> Box:
    """Stack boxes and center them; the one at index `base` aligns with the neighbors. Raises TooLarge."""
    width = max(box.width for box in boxes)
    lines = [line for box in boxes for line in box.aligned(width, "^").lines]
    return Box.of(lines, sum(box.height for box in boxes[:base]) + boxes[base].base)


def grid(rows: Sequence[Sequence[Box]], aligns: str, gap: int) -> Box:
    """Place boxes in rows and columns. aligns: column alignments, repeated as needed. Raises TooLarge."""
    count = max(map(len, rows))
    if count * len(rows) > _MOST_CELLS:
        raise TooLarge
    empty = Box(("",))
    full = [[*row, *[empty] * (count - len(row))] for row in rows]
    widths = [max(box.width for box in column) for column in zip(*full, strict=True)]
    between = Box((" " * gap,))
    lines: list[str] = []
    for row in full:
        cells: list[Box] = []
        for at, (box, width) in enumerate(zip(row, widths, strict=True)):
            cells += [between] if at else []
            cells.append(box.aligned(width, aligns[at % len(aligns)]))
        lines += beside(cells).lines
    return Box.of(lines, len(lines) // 2 if len(lines) != 2 else 0)


def fenced(left: str, box: Box, right: str) -> Box:
    """Place a box between delimiters of the same height."""
    return beside([_tall(left, box), box, _tall(right, box)])


def _tall(delimiter: str, box: Box) -> Box:
    if box.height == 1 or delimiter not in TALL:
        return Box.of([delimiter if y == box.base else "" for y in range(box.height)], box.base)
    top, middle, rest, bottom = tuple(TALL[delimiter])
    lines = [rest] * box.height
    lines[box.height // 2] = middle
    lines[0], lines[-1] = top, bottom
    return Box(tuple(lines), box.base)


def framed(box: Box) -> Box:
    """Return a box with a frame around it."""
    rule = "─" * (box.width + 2)
    lines = [f"┌{rule}┐", *(f"│ {line} │" for line in box.lines), f"└{rule}┘"]
    return Box.of(lines, box.base + 1)
