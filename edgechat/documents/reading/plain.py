"""Text, Markdown, code and CSV, which need no child process: from bytes to text."""

from __future__ import annotations

import codecs
import contextlib
import csv
import re

from edgechat.base.process.file_decoder import NotDecodable
from edgechat.base.text import printable

_HEAD = 8192
"""Bytes in which it is found out whether they are text."""
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_CONTROLS = bytes(n for n in range(32) if n not in b"\t\n\r\f\x1b\b")
_MOST_CONTROLS, _MOST_FOREIGN = 0.02, 0.25
"""Of text, the share of control characters, and in Windows-1252 that of characters beyond ASCII."""
_ASCII = bytes(range(128))
_DELIMITERS = ",;\t|"
_LINE_ENDS = re.compile("\r\n?")


def decoded_text(data: bytes, *, most: int) -> tuple[str, bool]:
    """Return the text of a file, harmless, and whether it is cut: to `most` bytes, after a line.

    Its lines are the file's own. Raises NotDecodable for what is no text.
    """
    charset = next((charset for mark, charset in _MARKS if data.startswith(mark)), "")
    head = data[:_HEAD]
    if not charset and (b"\0" in head or _share(head, _CONTROLS) > _MOST_CONTROLS):
        raise NotDecodable("is not text, but binary", "Leave it out, or save what is in it as text or PDF.")
    is_cut = len(data) > most
    data = data[:most]
    if charset:
        text = _decode(data, charset, "replace", is_cut).removeprefix("\ufeff")
    else:
        text = _guessed(data, is_cut)
    text = printable(_LINE_ENDS.sub("\n", text).replace("\u2028", " ").replace("\u2029", " "))
    if is_cut:
        text = text[: text.rfind("\n") + 1] or text
    return text if text.endswith("\n") or not text else text + "\n", is_cut


def _guessed(data: bytes, is_cut: bool) -> str:
    """Decode UTF-8, or Windows-1252 if that makes sense."""
    try:
        return _decode(data, "utf-8", "strict", is_cut)
    except UnicodeDecodeError:
        if 1 - _share(data, _ASCII) <= _MOST_FOREIGN:
            with contextlib.suppress(UnicodeDecodeError):
                return data.decode("cp1252")
        raise NotDecodable("has an unknown character encoding", "Save it as UTF-8.") from None


def _decode(data: bytes, charset: str, errors: str, is_cut: bool) -> str:
    """Decode all but a character that is cut in its middle."""
    return codecs.getincrementaldecoder(charset)(errors).decode(data, final=not is_cut)


def _share(data: bytes, of: bytes) -> float:
    return 1 - len(data.translate(None, of)) / len(data) if data else 0.0


def rows(text: str) -> str:
    """Return CSV as rows of tab-separated cells, a line each: row 1 is the first. What is no CSV stays."""
    first = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count)
    try:
        return "".join(
            "\t".join(" ".join(cell.split()) for cell in row) + "\n"
            for row in csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
        )
    except csv.Error:  # a quote that is never closed makes one cell of the rest
        return text
