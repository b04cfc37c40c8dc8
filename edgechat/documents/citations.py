"""The citations in a reply: which passages it names, and whether what it quotes is in them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import msgspec

CITATION = re.compile(r"\[(\d{1,4}(?:\s*[,;]\s*\d{1,4}){0,15})\]")
"""The numbers of passages in brackets, [1] or [1, 3]."""
CITATIONS = re.compile(rf"(?<![\w\]])(?:{CITATION.pattern})+(?![(\[])")
"""One or more: [1][2]. Not an index, x[1], nor a link, [1](…)."""
_QUOTATION = re.compile(r"“([^”\n]{1,2000})”|„([^“”\n]{1,2000})[“”]|«([^»\n]{1,2000})»|\"([^\"\n]{1,2000})\"")
_CODE = re.compile(r"^(```+|~~~+).*?(?:^\1|\Z)|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LEAST_WORDS = 4
"""A quotation of fewer is a name or a term, not a claim about a source."""
_NOT_WORDS = re.compile(r"[\W_]+")
_ELLIPSIS = re.compile(r"\s*(?:\[?…\]?|\[?\.\.\.\]?)\s*")


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation in a reply, [1] or [1, 3]."""

    start: int
    """Its first character in the reply."""
    end: int
    numbers: tuple[int, ...]


class Quotation(msgspec.Struct, frozen=True, kw_only=True):
    """A quotation in a reply."""

    start: int
    end: int
    text: str
    is_there: bool
    """Whether it is in one of the passages, but for case, spaces and punctuation."""


def citations_in(text: str, known: Collection[int]) -> list[Citation]:
    """Return the citations of known passages in a reply, those in code left out."""
    found: list[Citation] = []
    prose = _without_code(text)
    places = (run.span() for run in CITATIONS.finditer(prose))
    for match in (one for place in places for one in CITATION.finditer(prose, *place)):
        numbers = tuple(int(number) for number in re.findall(r"\d+", match[1]))
        if all(number in known for number in numbers):
            found.append(Citation(start=match.start(), end=match.end(), numbers=numbers))
    return found


def quotations_in(text: str, passages: Sequence[str]) -> list[Quotation]:
    """Return the quotations of some length in a reply, each held against the passages it was given."""
    plain: list[str] | None = None
    found: list[Quotation] = []
    for match in _QUOTATION.finditer(_without_code(text)):
        said = next(group for group in match.groups() if group is not None)
        parts = [words for part in _ELLIPSIS.split(said) if (words := _words(part))]
        if sum(len(words.split()) for words in parts) < _LEAST_WORDS:
            continue
        if plain is None:  # most replies quote nothing
            plain = [_words(passage) for passage in passages]
        is_there = any(all(f" {words} " in f" {passage} " for words in parts) for passage in plain)
        found.append(Quotation(start=match.start(), end=match.end(), text=said, is_there=is_there))
    return found


def _words(text: str) -> str:
    return " ".join(_NOT_WORDS.sub(" ", text.casefold()).split())


def _without_code(text: str) -> str:
    """Return a text with its code replaced by as many spaces."""
    return _CODE.sub(lambda match: " " * len(match[0]), text)
