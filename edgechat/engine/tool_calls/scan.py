"""Finds the end of a call's body in text that comes piece by piece; every character is scanned once."""

from __future__ import annotations

import re
from collections.abc import Mapping

DEEPEST = 64
"""Levels of nesting in a body; what is deeper is no call."""
LONGEST_END = 64
"""Characters of the end of a body."""


Kinds = Mapping[str, Mapping[str, frozenset[str]]]
"""JSON types that each parameter of each tool may have; none if the schema does not say."""


class JsonScan:
    """A body that is a JSON object or array: it ends where its brackets do."""

    _OUTSIDE = re.compile(r"[\s,:0-9.+\-a-zA-Z]*")
    _INSIDE = re.compile(r'[^"\\]*')

    def __init__(self) -> None:
        self.n_valid = 0
        """Of a piece that shows that the body is none: characters before the first wrong one."""
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Return where in this piece the body has ended; None if it goes on. ValueError: it is none.

        Brackets are counted, not matched: the rest is for the parser to check.
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
        """Return where in this piece the body has ended, its end included; None if it goes on."""
        seen = self._tail + text
        match = self._end.search(seen)
        if match is not None:
            return match.end() - len(self._tail)
        self._tail = seen[-LONGEST_END:]
        return None


def is_shallow(text: str) -> bool:
    """Say whether a JSON text is not nested too deeply."""
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
