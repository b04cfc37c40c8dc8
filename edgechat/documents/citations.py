"""Citations in a reply: the passages they refer to, their sources, and a check of quotations."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from edgechat.documents.collection import File


CITATION = re.compile(r"\[(\d{1,4}(?:\s*[,;]\s*\d{1,4}){0,15})\]")
"""Passage numbers in brackets: [1] or [1, 3]."""
CITATIONS = re.compile(rf"(?<![\w\]])(?:{CITATION.pattern})+(?![(\[])")
"""One or more citations in a row: [1][2]. Does not match an index, x[1], or a link, [1](…)."""
_QUOTATION = re.compile(r"“([^”\n]{1,2000})”|„([^“”\n]{1,2000})[“”]|«([^»\n]{1,2000})»|\"([^\"\n]{1,2000})\"")
_CODE = re.compile(r"^(```+|~~~+).*?(?:^\1|\Z)|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LEAST_WORDS = 4
"""Shorter quotations are names or terms, not claims about a source."""
_NOT_WORDS = re.compile(r"[\W_]+")
_ELLIPSIS = re.compile(r"\s*(?:\[?…\]?|\[?\.\.\.\]?)\s*")


class Citation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation in a reply: [1] or [1, 3]."""

    start: int
    """Index of its first character in the reply."""
    end: int
    numbers: tuple[int, ...]


class Quotation(msgspec.Struct, frozen=True, kw_only=True):
    """A quotation in a reply."""

    start: int
    end: int
    text: str
    is_there: bool
    """Whether one of the passages contains it, ignoring case, spaces and punctuation."""


def citations_in(text: str, known: Collection[int]) -> list[Citation]:
    """Return the citations in a reply that refer to known passages, except those in code."""
    found: list[Citation] = []
    prose = _without_code(text)
    places = (run.span() for run in CITATIONS.finditer(prose))
    for match in (one for place in places for one in CITATION.finditer(prose, *place)):
        numbers = tuple(int(number) for number in re.findall(r"\d+", match[1]))
        if all(number in known for number in numbers):
            found.append(Citation(start=match.start(), end=match.end(), numbers=numbers))
    return found


def quotations_in(text: str, passages: Sequence[str]) -> list[Quotation]:
    """Return the longer quotations in a reply, each checked against the passages given to the model."""
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
    """Return text with all code replaced by spaces."""
    return _CODE.sub(lambda match: " " * len(match[0]), text)


_RANGE = "–"


class PassageSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The source of a passage given to a model: a place in a document."""

    number: int
    """Its number in citations: [1]. Unique in a conversation."""
    collection: str
    path: str
    """Path of the file on this machine."""
    digest: str
    """SHA-256 of the file when it was read, in hexadecimal."""
    start: int
    """Line number at which it starts in the file's text, counting from 1."""
    end: int
    place: str = ""
    """Human-readable place: 'lines 3–10', 'page 2'; '' for a whole document."""

    def covers(self, other: PassageSource) -> bool:
        """Return whether this place contains another one, in the same version of the same file."""
        same = (self.path, self.digest) == (other.path, other.digest)
        return same and (not self.place or (self.start <= other.start and other.end <= self.end))

    @property
    def has_changed(self) -> bool:
        """Whether the file has been changed or deleted. Reads the file."""
        import hashlib

        try:
            with Path(self.path).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() != self.digest
        except OSError:
            return True


def place_of(file: File, start: int, end: int, heading: str = "") -> str:
    """Return a human-readable name for a range of lines in a file, in the file's units.

    heading: the section's heading; used instead of line numbers if the unit is a paragraph, because readers
    do not see its lines.
    """
    if file.unit == "paragraph" and heading:
        return f"“{heading}”"
    unit = "row" if file.unit == "row" else "line"
    if file.unit in ("page", "chapter", "cell") and file.starts:
        start, end = (max(1, bisect_right(file.starts, line)) for line in (start, end))
        unit = file.unit
    return f"{unit} {start}" if start == end else f"{unit}s {start}{_RANGE}{end}"
