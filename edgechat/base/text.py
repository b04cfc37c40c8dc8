"""Text for terminals: untrusted text (from a model, a file name, a log) made safe, and formatted numbers."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

# C0 without tab and newline, DEL, and C1: characters that can start an escape sequence or move the cursor.
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
# Characters that change the direction of text: U+061C, U+200E, U+200F, embeddings, overrides and isolates.
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Line separators that terminals do not recognize, and surrogates, which cannot be encoded.
_SEPARATORS, _SURROGATES = "\u2028\u2029", "\ud800-\udfff"
_INVISIBLE = re.compile(f"[{_CONTROL}{_BIDI}{_SEPARATORS}{_SURROGATES}]")
_DIRECTION = re.compile(f"[{_BIDI}]")
_SURROGATE = re.compile(f"[{_SURROGATES}]")
_NOTABLE_SPEEDUP = 1.05


def visible(text: str) -> str:
    """Return `text` with characters that a terminal would obey or hide replaced by visible ones.

    ESC becomes ␛; characters without a symbol, such as U+202E, become �. The length stays the same, and
    newlines and tabs are kept.
    """
    return _INVISIBLE.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


def printable(text: str) -> str:
    """Return `text` without control and direction characters, except newlines and tabs.

    Escape sequences are reduced to plain text. Each character is handled separately, so a stream can be
    filtered piece by piece.
    """
    return _INVISIBLE.sub(_plain, text)


def _plain(match: re.Match[str]) -> str:
    char = match.group()
    return "\n" if char in _SEPARATORS else "�" if "\ud800" <= char <= "\udfff" else ""


def is_text(text: str) -> bool:
    """Return whether `text` can be encoded; a file name may contain bytes that are not UTF-8."""
    return _SURROGATE.search(text) is None


def encodable(text: str) -> str:
    """Return `text` with a question mark in place of each character that cannot be encoded."""
    return text.encode("utf-8", "replace").decode()


def is_binary(data: bytes) -> bool:
    """Return whether a file's content is binary by git's rule: a null byte near its beginning."""
    return b"\0" in data[:8192]


def escaped_json(text: str) -> str:
    r"""Return JSON `text` with every character that a terminal would obey or hide written as \uXXXX."""
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def flat(text: str) -> str:
    """Return `text` as one printable line, for a name or message that is shown in full.

    Direction characters become �: in names, they are more often used for disguise than needed for a language.
    """
    return printable(_DIRECTION.sub("�", text)).replace("\n", " ").replace("\t", " ")


def one_line(text: str, limit: int = 200) -> str:
    """Flatten `text` as `flat` does, collapse its spaces, and cut it to `limit` characters."""
    line = " ".join(flat(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def mebibytes(n_bytes: int) -> str:
    """Return a size as text: '812 MiB' or '4.6 GiB', but '12 KiB' if it would be 0 MiB."""
    mib = n_bytes / 2**20
    if 0 < mib < 0.5:
        return f"{max(1, round(n_bytes / 2**10))} KiB"
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"


def figure(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits and no exponent: '0.0282', '8.4', '1234'."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text or abs(value) >= 10 ** (digits - 1) else text


def rough(value: float) -> str:
    """Return a predicted number with only its meaningful digits: '~0.4', '~5', '~15', '~130'."""
    if value >= 99.5:
        return f"~{round(value, 1 - int(math.log10(value))):.0f}"
    return f"~{value:.0f}" if value >= 0.95 else f"~{value:.1g}"


def rough_seconds(n: float) -> str:
    """Return a predicted duration as text: '~6 s', '~25 s', '~3 min'."""
    if n < 10:
        return f"~{max(1, round(n))} s"
    return f"~{5 * round(n / 5)} s" if n < 87.5 else f"~{seconds(max(n, 99.5))}"


def by_drafts(speedup: float, digits: int) -> str:
    """Return the speedup from drafting as text ('1.38x from drafting'), or '' if it is barely noticeable."""
    return f"{speedup:.{digits}f}x from drafting" if speedup >= _NOTABLE_SPEEDUP else ""


def seconds(n: float) -> str:
    """Return a duration as text: '0.3 s', '17 s', '4 min'."""
    if n < 99.5:
        return f"{n:.0f} s" if n >= 9.95 else f"{n:.1f} s"
    return f"{n / 60:.0f} min" if n < 99.5 * 60 else f"{n / 3600:.0f} h"


def local_time(at: float) -> datetime:
    """Return the local time for a POSIX timestamp, or the start of 1970 if it is out of range."""
    from datetime import datetime  # 2 ms, not needed at startup

    try:
        return datetime.fromtimestamp(at)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0)


def ago(n: float) -> str:
    """Return an age of n seconds as text: '3 days ago'."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if (count := int(n // size)) > 0:
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"
