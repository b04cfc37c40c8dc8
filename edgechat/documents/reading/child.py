"""The child process that reads HTML, notebooks, PDF, DOCX and EPUB; see `edgechat.documents.reading.reader`.

A file of a few bytes can ask for hours or gigabytes, so what reads them runs in a process with limits on
memory and time. Text goes back in parts: where the process ends amid a file, those before are kept.
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
from edgechat.documents.reading.reader import (
    MEMORY_LIMIT,
    PAGE,
    TIME_LIMIT,
    DocumentPart,
    ReadDocument,
    ReadInChild,
    ReadOn,
)

_PART_SECONDS = 0.05
"""How much of the reading is lost where a page hangs; the first page never is."""


def main() -> None:
    """Answer FilePart with nothing, ReadDocument and ReadOn with DocumentPart, until the parent is gone."""
    pipes = spawn.adopt_pipe()
    logging.disable()  # pypdf tells of every oddity
    child.limit_memory(MEMORY_LIMIT)
    child.serve(pipes, _DocumentReading().answer, seconds=int(TIME_LIMIT) + 5)


class _DocumentReading:
    """What has come of a file so far, then what is left of its text."""

    def __init__(self) -> None:
        self._file = bytearray()
        self._pieces: Iterator[str] = iter(())

    def answer(self, question: bytes) -> bytes:
        """Return the answer to one message of the parent."""
        match msgspec.msgpack.decode(question, type=FilePart | ReadDocument | ReadOn):
            case FilePart(data):
                self._pieces = iter(())
                self._file += data
                return b""
            case ReadDocument(kind):
                data, self._file = bytes(self._file), bytearray()
                self._pieces = _pieces(kind, data)
                return msgspec.msgpack.encode(self._part(0.0))
        return msgspec.msgpack.encode(self._part(_PART_SECONDS))

    def _part(self, seconds: float) -> DocumentPart:
        """Return one piece, or more within `seconds`. Whatever a library raises is a problem."""
        end = time.monotonic() + seconds
        read = list[str]()
        try:
            for piece in self._pieces:
                read.append(piece)
                if time.monotonic() >= end:
                    return DocumentPart("".join(read))
            return DocumentPart("".join(read), is_last=True)
        except Exception as error:
            wrong = problem_of(
                error, smaller="Split it into several files.", again="Save or download it again."
            )
            is_missing = isinstance(error, PackageMissing)
            return DocumentPart("".join(read), True, wrong.problem, wrong.hint, is_missing)


def _pieces(kind: ReadInChild, data: bytes) -> Iterator[str]:
    # Here, for they need what the parent does not.
    from edgechat.documents.reading import notebook, office, pdf

    readers: dict[ReadInChild, Callable[[bytes], Iterator[str]]] = {
        "html": office.read_html,
        "notebook": notebook.read_notebook,
        "pdf": pdf.read_pdf,
        "docx": office.read_docx,
        "epub": office.read_epub,
    }
    return tidied(readers[kind](data))


LONGEST_LINE = 2000
"""Characters; longer ones are broken at spaces."""
_LIGATURES = ("ff", "fi", "fl", "ffi", "ffl", "st", "st")
_LETTERS = str.maketrans(
    {0xFB00 + n: letters for n, letters in enumerate(_LIGATURES)}
    | {"\u00ad": None, "\u200b": None, "\ufeff": None, "\u00a0": " "}
)
"""What looks like other text and is not found by it; soft hyphens."""
_BROKEN = re.compile(rf".{{1,{LONGEST_LINE}}}(?= |$)|.{{1,{LONGEST_LINE}}}")


def tidied(pieces: Iterator[str]) -> Iterator[str]:
    """Yield whole lines, without control characters, spaces at their ends and blank lines in a row.

    pieces: text, with PAGE at the beginning of the first piece of each page.
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
