"""Where a passage is from: what a citation of it leads to."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from edgechat.documents.collection import File

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
