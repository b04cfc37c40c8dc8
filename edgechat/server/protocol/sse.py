"""Server-sent events."""

from __future__ import annotations


def data_event(data: bytes) -> bytes:
    """Return an event without a name. data: one line."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """Return an event with a name. data: one line."""
    return b"event: " + name.encode() + b"\n" + data_event(data)
