"""Text of strangers (a model, a file name, a log) made harmless for a terminal."""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, and C1: whatever could begin an escape sequence or move the cursor.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""Return `text` without control characters, newline and tab kept.

    Without ESC, CSI (U+009B) and OSC (U+009D) what is left of a sequence is plain text. The function looks
    at single characters, so it may be applied to each piece of a stream.
    """
    return _CONTROL.sub("", text)


def escaped_json(text: str) -> str:
    r"""Return JSON `text` with DEL and C1, which JSON lets stand raw, written as \uXXXX."""
    return re.sub(r"[\x7f-\x9f]", lambda found: f"\\u{ord(found.group()):04x}", text)


def one_line(text: str, limit: int = 200) -> str:
    """Return `text` as one printable line of at most `limit` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def mebibytes(n_bytes: int) -> str:
    """Return `n_bytes` for people: '812 MiB', '4.6 GiB'."""
    mib = n_bytes / 2**20
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"
