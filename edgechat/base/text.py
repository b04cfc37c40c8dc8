"""Text of strangers (a model, a file name, a log) made harmless for a terminal."""

from __future__ import annotations

import re

# C0 without tab and newline, DEL, and C1: whatever could begin an escape sequence or move the cursor.
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
# What turns the order of letters about: U+061C, U+200E, U+200F, the embeddings, overrides and isolates.
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
# Ends of lines that are none of a terminal's, and halves of characters that no encoding takes.
_SEPARATORS, _HALVES = "\u2028\u2029", "\ud800-\udfff"
_UNSEEN = re.compile(f"[{_CONTROL}{_BIDI}{_SEPARATORS}{_HALVES}]")
_TURNING = re.compile(f"[{_BIDI}]")
_HALF = re.compile(f"[{_HALVES}]")
_FELT = 1.05
"""Times as fast: less is not worth a word."""


def visible(text: str) -> str:
    r"""Return `text` with each character that a terminal obeys or hides replaced by one that is seen.

    ESC becomes ␛, and what has no picture of its own, as U+202E, becomes �. The result is as long as `text`
    and takes a cell for each of them; newline and tab are kept.
    """
    return _UNSEEN.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"


def printable(text: str) -> str:
    r"""Return `text` without control characters, those of direction too; newline and tab are kept.

    Without ESC, CSI (U+009B) and OSC (U+009D) what is left of a sequence is plain text. The function looks
    at single characters, so it may be applied to each piece of a stream.
    """
    return _UNSEEN.sub(_plain, text)


def _plain(found: re.Match[str]) -> str:
    char = found.group()
    return "\n" if char in _SEPARATORS else "�" if "\ud800" <= char <= "\udfff" else ""


def is_text(text: str) -> bool:
    """Say whether `text` can be written and stored: a file's name may have bytes that are no UTF-8."""
    return _HALF.search(text) is None


def escaped_json(text: str) -> str:
    r"""Return JSON `text` with what a terminal obeys or hides, and JSON lets stand raw, written as \uXXXX."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def flat(text: str) -> str:
    """Return `text` as it is but in one printable line, for a name or a message that is shown whole.

    What would turn letters about becomes �: in a name it is more likely a disguise than a language's need.
    """
    return printable(_TURNING.sub("�", text)).replace("\n", " ").replace("\t", " ")


def one_line(text: str, limit: int = 200) -> str:
    """Return `text` as `flat` does, its white space single, at most `limit` characters of it."""
    line = " ".join(flat(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def mebibytes(n_bytes: int) -> str:
    """Return `n_bytes` for people: '812 MiB', '4.6 GiB'."""
    mib = n_bytes / 2**20
    return f"{mib:.0f} MiB" if mib < 1000 else f"{mib / 1024:.1f} GiB"


def figure(value: float, digits: int = 3) -> str:
    """Return a number for people, so many digits of it: '0.0282', '8.4', '1234'; never with an exponent."""
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text or abs(value) >= 10 ** (digits - 1) else text


def by_drafts(speedup: float, digits: int) -> str:
    """Return what drafts did to the speed: '1.38x by drafts'; '' where that is hardly felt."""
    return f"{speedup:.{digits}f}x by drafts" if speedup >= _FELT else ""


def seconds(n: float) -> str:
    """Return a time for people: '0.3 s', '17 s', '4 min'."""
    if n < 99.5:
        return f"{n:.0f} s" if n >= 9.95 else f"{n:.1f} s"
    return f"{n / 60:.0f} min" if n < 99.5 * 60 else f"{n / 3600:.0f} h"


def ago(n: float) -> str:
    """Return for people what was n seconds ago: '3 days ago'."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if (count := int(n // size)) > 0:
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"
