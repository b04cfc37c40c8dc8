"""The citations in a reply: the passages they name, where these are from, and whether quotes are there."""

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


_RANGE = "–"


class PassageSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place in a document, as it was when it was given to a model."""

    number: int
    """By which a reply cites it: [1]. Unique in a conversation."""
    collection: str
    path: str
    """Of the file on this machine."""
    digest: str
    """SHA-256 of the file as it was, hexadecimal."""
    start: int
    """The number of its first line in the file's text, from 1."""
    end: int
    place: str = ""
    """For people: 'lines 3–10', 'page 2'; '' for a whole document."""

    def covers(self, other: PassageSource) -> bool:
        """Whether all of another place, in the same state of the same file, is in this one."""
        same = (self.path, self.digest) == (other.path, other.digest)
        return same and (not self.place or (self.start <= other.start and other.end <= self.end))

    @property
    def has_changed(self) -> bool:
        """Whether the file is another one now, or gone. Reads it."""
        import hashlib

        try:
            with Path(self.path).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() != self.digest
        except OSError:
            return True


def place_of(file: File, start: int, end: int, heading: str = "") -> str:
    """Return a range of lines of a file's text for people, in the units that the file has.

    heading: of the section; it says more where people see no lines.
    """
    if file.unit == "paragraph" and heading:
        return f"“{heading}”"
    unit = "row" if file.unit == "row" else "line"
    if file.unit in ("page", "chapter", "cell") and file.starts:
        start, end = (max(1, bisect_right(file.starts, line)) for line in (start, end))
        unit = file.unit
    return f"{unit} {start}" if start == end else f"{unit}s {start}{_RANGE}{end}"
