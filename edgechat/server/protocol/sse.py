"""Streams in lines: JSON that no client cuts, and server-sent events of it."""

from __future__ import annotations

_ENDS_OF_LINES = tuple((mark.encode(), rf"\u{ord(mark):04x}".encode()) for mark in "\x85\u2028\u2029")
"""Where clients that cut text as Unicode says (httpx does) end a line, and how JSON escapes it."""


def in_one_line(data: bytes) -> bytes:
    """Return JSON without line ends as one line for every client."""
    for mark, escaped in _ENDS_OF_LINES:
        data = data.replace(mark, escaped)
    return data


def data_event(data: bytes) -> bytes:
    """Return an event without a name. data: JSON without line ends."""
    return b"data: " + in_one_line(data) + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """Return an event with a name. data: JSON without line ends."""
    return b"event: " + name.encode() + b"\n" + data_event(data)
