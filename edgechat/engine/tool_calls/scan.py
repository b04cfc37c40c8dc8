"""Where the body of a call ends, in a text that comes piece by piece. Every character is looked at once."""

from __future__ import annotations

import re
from typing import Protocol

DEEPEST = 64
"""Nesting of a body; what lies deeper is no call."""
LONGEST_END = 64
"""Characters of what ends a body."""


class Scan(Protocol):
    """Looks for the end of a body."""

    n_valid: int
    """Of a piece with which the body turns out to be none: characters before those to blame."""

    def feed(self, text: str) -> int | None:
        """Return where in this piece the body has ended; None if it goes on. ValueError: it is none."""


class JsonScan:
    """A body that is a JSON object or array: it ends where its brackets do."""

    _OUTSIDE = re.compile(r"[\s,:0-9.+\-a-zA-Z]*")
    _INSIDE = re.compile(r'[^"\\]*')

    def __init__(self) -> None:
        self.n_valid = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """See `Scan.feed`. That brackets match and the rest is in order is for the parser to say."""
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
            raise ValueError(f"{sign!r} is no JSON")
        if self._depth > DEEPEST:
            raise ValueError("too deep")

    @staticmethod
    def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
        match = pattern.match(text, at)
        return match.end() if match else at


class EndScan:
    """A body that ends with a pattern of at most `LONGEST_END` characters."""

    def __init__(self, end: str) -> None:
        self.n_valid = 0
        self._end = re.compile(end)
        self._tail = ""

    def feed(self, text: str) -> int | None:
        """See `Scan.feed`. The end itself belongs to the body."""
        seen = self._tail + text
        match = self._end.search(seen)
        if match is not None:
            return match.end() - len(self._tail)
        self._tail = seen[-LONGEST_END:]
        return None


def is_shallow(text: str) -> bool:
    """Say whether a JSON text is no deeper than can be worked with."""
    try:
        JsonScan().feed("[" + text)
    except ValueError:
        return False
    return True


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """Return the length of the longest end of `text` that a mark could begin with."""
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
