"""Child process that reads HTML, notebooks, PDF, DOCX and EPUB; see `edgechat.documents.reading.reader`.

Even a tiny file can take hours or gigabytes of memory to read, so the process has memory and time limits. The
text is sent in parts, which the parent keeps even if the process dies halfway through a file.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from edgechat.base.process import child, spawn
from edgechat.base.process.file_decoder import FilePart, PackageMissing, problem_of
from edgechat.base.text import printable
from edgechat.documents.reading import notebook, office, pdf
from edgechat.documents.reading.reader import (
    AGAIN,
    MEMORY_LIMIT,
    PAGE,
    TIME_LIMIT,
    DocumentPart,
    ReadDocument,
    ReadInChild,
    ReadOn,
)

_PART_SECONDS = 0.05
"""Reading time per part; if a page hangs, at most this much work is lost. The first page is sent alone."""
LONGEST_LINE = 2000
"""Maximum length of a line in characters; longer lines are broken at spaces."""
_LIGATURES = ("ff", "fi", "fl", "ffi", "ffl", "st", "st")
_LETTERS = str.maketrans(
    {0xFB00 + n: letters for n, letters in enumerate(_LIGATURES)}
    | {"\u00ad": None, "\u200b": None, "\ufeff": None, "\u00a0": " "}
)
"""Replaces ligatures and special spaces, which searches would miss, and removes invisible characters."""
_BROKEN = re.compile(rf".{{1,{LONGEST_LINE}}}(?= |$)|.{{1,{LONGEST_LINE}}}")
_READERS: dict[ReadInChild, Callable[[bytes], Iterator[str]]] = {
    "html": office.read_html,
    "notebook": notebook.read_notebook,
    "pdf": pdf.read_pdf,
    "docx": office.read_docx,
    "epub": office.read_epub,
}


def main() -> None:
    """Answer FilePart with an empty message, and ReadDocument and ReadOn with a DocumentPart."""
    pipes = spawn.adopt_pipe()
    logging.disable()  # pypdf logs every irregularity
    child.limit_memory(MEMORY_LIMIT)
    child.serve(pipes, _DocumentReading().answer, seconds=int(TIME_LIMIT) + 5)


class _DocumentReading:
    """A file being read: collects its parts, then returns its text part by part."""

    def __init__(self) -> None:
        self._file = bytearray()
        self._pieces: Iterator[str] = iter(())

    def answer(self, question: bytes) -> bytes:
        match msgspec.msgpack.decode(question, type=FilePart | ReadDocument | ReadOn):
            case FilePart(data):
                self._pieces = iter(())
                self._file += data
                return b""
            case ReadDocument(kind):
                data, self._file = bytes(self._file), bytearray()
                self._pieces = tidied(_READERS[kind](data))
                return msgspec.msgpack.encode(self._part(0.0))
        return msgspec.msgpack.encode(self._part(_PART_SECONDS))

    def _part(self, seconds: float) -> DocumentPart:
        """Return the pieces read within `seconds`, but always at least one.

        Reports any exception as a problem with the file.
        """
        end = time.monotonic() + seconds
        read = list[str]()
        try:
            for piece in self._pieces:
                read.append(piece)
                if time.monotonic() >= end:
                    return DocumentPart("".join(read))
            return DocumentPart("".join(read), is_last=True)
        except Exception as error:
            wrong = problem_of(error, smaller="Split it into several files.", again=AGAIN)
            is_missing = isinstance(error, PackageMissing)
            return DocumentPart("".join(read), True, wrong.problem, wrong.hint, is_missing)


def tidied(pieces: Iterator[str]) -> Iterator[str]:
    """Yield whole lines, after removing control characters, trailing spaces and repeated blank lines.

    pieces: text, with PAGE at the start of the first piece of each page.
    """
    rest, gap, is_begun = "", "", False
    for piece in chain(pieces, "\n"):
        kept = []
        if piece.startswith(PAGE):
            kept = [f"{rest}\n" if rest else gap, PAGE]
            rest, gap, is_begun = "", "", False
        *lines, rest = (rest + _harmless(piece)).split("\n")
        if len(rest) > LONGEST_LINE:
            *more, rest = _broken(rest)
            lines += more
        for line in map(str.rstrip, lines):
            if line:
                parts = _broken(line) if len(line) > LONGEST_LINE else [line]
                kept += (gap, *(f"{part}\n" for part in parts))
                gap, is_begun = "", True
            elif is_begun:
                gap = "\n"
        yield "".join(kept)


def _broken(line: str) -> list[str]:
    return [part.lstrip() for part in _BROKEN.findall(line)]


def _harmless(text: str) -> str:
    return printable(text.replace("\r\n", "\n").replace("\r", "\n")).translate(_LETTERS)
