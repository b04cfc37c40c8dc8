"""Untrusted documents as text: `DocumentReader` reads thousands of files, one after the other.

Text, Markdown, code and CSV take no process; HTML, notebooks, PDF, DOCX and EPUB one child for all of them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec

from edgechat.base.errors import DocumentError, ReaderLost, ReaderMissing
from edgechat.base.process.file_decoder import FileDecoder, NotDecodable
from edgechat.documents.reading.child import (
    MEMORY_LIMIT,
    TIME_LIMIT,
    DocumentPart,
    ReadDocument,
    ReadInChild,
    ReadOn,
)
from edgechat.documents.reading.kinds import Kind, kind_of
from edgechat.documents.reading.plain import decoded_text, rows
from edgechat.documents.reading.tidy import PAGE

MAX_TEXT = 16 * 2**20
"""Bytes of UTF-8 of the text of one document."""

_SPARE_SECONDS = 2.0
"""Of the time limit, when no more is asked for: a page takes less."""

PlaceUnit = Literal["line", "page", "chapter", "cell", "paragraph", "row"]

_UNITS: dict[Kind, PlaceUnit] = {
    "text": "line",
    "markdown": "line",
    "code": "line",
    "csv": "row",
    "html": "paragraph",
    "docx": "paragraph",
    "notebook": "cell",
    "pdf": "page",
    "epub": "chapter",
}


class Extracted(msgspec.Struct, frozen=True):
    r"""The text of a document, in lines that end with `\n`; it has no other control characters but tabs.

    Headings are Markdown's (#, ##) where the format has them, rows of tables have tabs between their cells.
    Lines and rows are the file's own, however long; other text has lines of at most 2,000 characters.
    """

    text: str
    unit: PlaceUnit
    """How people name places in it. A row is a line; a paragraph is what blank lines surround."""
    starts: tuple[int, ...] = ()
    """Of pages, chapters and cells: the line, from 1, with which each begins; empty ones as the next one."""
    is_cut: bool = False
    """It is longer than the bounds of size and time, or damaged further on."""


class DocumentReader(FileDecoder):
    """Reads documents; see `FileDecoder`."""

    role = what = "document"
    error, unready, lost = DocumentError, ReaderMissing, ReaderLost
    smaller = "Split it into several files."
    otherwise = "Open it in the program that made it, and save it from there as text or PDF."

    def __init__(self) -> None:
        super().__init__(seconds=TIME_LIMIT, memory=MEMORY_LIMIT)

    def read(self, source: Path | bytes, *, name: str | None = None) -> Extracted:
        """Return the text of a document, empty if it is. Its name says what it is, or else its first bytes.

        Raises DocumentError: for what is no text, is locked, damaged or too large; ReaderLost for what takes
        too long, too; ReaderMissing without the package for it.
        """
        path = source if isinstance(source, Path) else Path(name or "")
        name = name or self.name_of(source)
        data = source if isinstance(source, bytes) else self.read_file(source, name)
        kind = _kind(path, data)
        if kind in ("html", "notebook", "pdf", "docx", "epub"):
            return self._read_in_child(data, kind, name)
        try:
            text, is_cut = decoded_text(data, most=MAX_TEXT)
        except NotDecodable as error:
            raise self._problem(name, error.problem, error.hint) from error
        return Extracted(rows(text) if kind == "csv" else text, _UNITS[kind], is_cut=is_cut)

    def _read_in_child(self, data: bytes, kind: ReadInChild, name: str) -> Extracted:
        """Return what is read until a bound is reached, or something further on is damaged."""
        end = time.monotonic() + TIME_LIMIT
        self._send(data, name)
        question: ReadDocument | ReadOn = ReadDocument(kind)
        parts: list[str] = []
        size, has_text = 0, False
        is_last = is_cut = False
        while not (is_last or is_cut):
            try:
                answer = self._ask(question, name, seconds=end - time.monotonic())
            except DocumentError:
                if not has_text:
                    raise
                is_cut = True
                break
            part = msgspec.msgpack.decode(answer, type=DocumentPart)
            parts.append(part.text)
            size += len(part.text.encode())
            has_text = has_text or bool(part.text.strip())
            if part.problem and not has_text:
                error = ReaderMissing if part.is_missing else DocumentError
                raise self._problem(name, part.problem, part.hint, error)
            question, is_last = ReadOn(), part.is_last
            is_late = not is_last and time.monotonic() > end - _SPARE_SECONDS
            is_cut = bool(part.problem) or size > MAX_TEXT or is_late
        if is_cut and not has_text:
            problem = f"has no text that is found within {TIME_LIMIT:.0f} seconds"
            raise self._problem(name, problem, self.smaller, ReaderLost)
        return _extracted("".join(parts), _UNITS[kind], is_cut=is_cut)


def _kind(path: Path, data: bytes) -> Kind:
    if data.startswith(b"%PDF-"):
        return "pdf"
    return kind_of(path) or "text"


def _extracted(text: str, unit: PlaceUnit, *, is_cut: bool) -> Extracted:
    """Return a document whose pages are marked with PAGE."""
    if len(text) > MAX_TEXT // 4 and len(encoded := text.encode()) > MAX_TEXT:
        text = encoded[: encoded.rfind(b"\n", 0, MAX_TEXT) + 1].decode()
    starts, line = [], 1
    before, *pages = text.split(PAGE)
    for page in pages:
        starts.append(line)
        line += page.count("\n")
    return Extracted(before + "".join(pages), unit, tuple(starts), is_cut=is_cut)
