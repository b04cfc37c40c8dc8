"""Incremental scanners that find where a call's body ends, scanning every character only once."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEEPEST = 64
"""Maximum nesting depth of a body. Text that is nested more deeply is not a call."""
LONGEST_END = 64
"""Maximum length, in characters, of the text that ends a body."""


Kinds = Mapping[str, Mapping[str, frozenset[str]]]
"""The JSON types of each tool's parameters: an empty set where the schema names none."""


class JsonScan:
    """Scans a JSON object or array for its closing bracket."""

    _OUTSIDE = re.compile(r"[\s,:0-9.+\-a-zA-Z]*")
    _INSIDE = re.compile(r'[^"\\]*')

    def __init__(self) -> None:
        self.n_valid = 0
        """After a ValueError, how many characters at the start of the last piece were valid."""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Return where the body ends in this piece, or None if it continues.

        Raises ValueError if it is not JSON. Brackets are counted but not matched; the parser checks the rest.
        """
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                at = self._skip(self._INSIDE, text, at)
                if at < len(text):
                    self._in_string, self._escaped = text[at] == "\\", text[at] == "\\"
                    at += 1
            else:
                at = self._skip(self._OUTSIDE, text, at)
                if at < len(text):
                    self.n_valid = at
                    self._bracket(text[at])
                    at += 1
                if not self._depth:
                    return at
        return None

    def _bracket(self, sign: str) -> None:
        if sign in "{[":
            self._depth += 1
        elif sign in "}]":
            self._depth -= 1
        elif sign == '"' and self._depth:
            self._in_string = True
        else:
            raise ValueError(f"{sign!r} is not JSON")
        if self._depth > DEEPEST:
            raise ValueError("too deep")

    @staticmethod
    def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
        match = pattern.match(text, at)
        return match.end() if match else at


class EndScan:
    """Scans for the end of a body: a match for a pattern, at most `LONGEST_END` characters long."""

    def __init__(self, end: str) -> None:
        self.n_valid = 0
        self._end = re.compile(end)
        self._tail = ""

    def feed(self, text: str) -> int | None:
        """Return where the text after the body starts in this piece, or None if the body continues."""
        seen = self._tail + text
        match = self._end.search(seen)
        if match is not None:
            return match.end() - len(self._tail)
        self._tail = seen[-LONGEST_END:]
        return None


def is_shallow(text: str) -> bool:
    """Return True if JSON text is not nested too deeply."""
    try:
        JsonScan().feed("[" + text)
    except ValueError:
        return False
    return True


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of a mark."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
