"""Notebooks (.ipynb, nbformat 3 and 4) as text, cell by cell. Runs in the child process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import msgspec

from edgechat.base.process.file_decoder import NotDecodable
from edgechat.base.text import one_line
from edgechat.documents.reading.reader import AGAIN, PAGE

MOST_OUTPUT = 4000
"""Maximum characters per output: a table's first rows are enough, and a log's end is rarely needed."""
_TEXTS = ("text/plain", "text/markdown", "text/latex")
"""Output formats to read, in order of preference; images and scripts are skipped."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FENCE = re.compile("`{3,}")

Text = str | list[str]


class _Output(msgspec.Struct):
    output_type: str = ""
    text: Text = ""
    data: dict[str, msgspec.Raw] = {}
    evalue: str = ""
    ename: str = ""


class _Cell(msgspec.Struct):
    cell_type: str = ""
    source: Text = ""
    input: Text = ""
    """The code, in nbformat 3."""
    language: str = ""
    level: int = 1
    """The heading level, in nbformat 3."""
    outputs: list[_Output] = []


class _LanguageNames(msgspec.Struct):
    name: str = ""
    language: str = ""


class _Metadata(msgspec.Struct):
    language_info: _LanguageNames = msgspec.field(default_factory=_LanguageNames)
    kernelspec: _LanguageNames = msgspec.field(default_factory=_LanguageNames)


class _Worksheet(msgspec.Struct):
    cells: list[msgspec.Raw] = []


class _Notebook(msgspec.Struct):
    nbformat: int
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    cells: list[msgspec.Raw] = []
    worksheets: list[_Worksheet] = []
    """The cells, in nbformat 3."""


def read_notebook(data: bytes) -> Iterator[str]:
    """Yield PAGE and the text of each cell. Raises NotDecodable.

    Prose is unchanged; code and outputs are put in fences. A malformed cell has no text, but still counts as
    a cell.
    """
    try:
        notebook = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=_Notebook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = one_line(str(error), 120)
        raise NotDecodable(f"is not a notebook, or is damaged ({reason})", AGAIN) from error
    language = _language(notebook.metadata)
    for raw in [*notebook.cells, *(cell for sheet in notebook.worksheets for cell in sheet.cells)]:
        pieces = [PAGE]
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pieces += _cell(msgspec.json.decode(raw, type=_Cell), language)
        yield "".join(pieces)


def _cell(cell: _Cell, language: str) -> Iterator[str]:
    source = _joined(cell.source or cell.input)
    match cell.cell_type:
        case "code":
            if source.strip():
                yield _fenced(source, cell.language or language)
            for output in cell.outputs:
                if text := _text_of(output):
                    yield _fenced(text, "output")
        case "heading":
            yield f"{'#' * min(max(cell.level, 1), 6)} {' '.join(source.split())}\n\n"
        case _:
            yield f"{source}\n\n"


def _text_of(output: _Output) -> str:
    text = _joined(output.text)
    for kind in _TEXTS:
        if not text and kind in output.data:
            text = _joined(msgspec.json.decode(output.data[kind], type=Text))
    if output.ename:
        text = f"{output.ename}: {output.evalue}"
    text = _COLOURS.sub("", text).strip("\n")
    return text if len(text) <= MOST_OUTPUT else f"{text[:MOST_OUTPUT]}\n…"


def _fenced(text: str, language: str) -> str:
    """Return code in a fence that is longer than any fence inside the code."""
    fence = "`" * max([2, *(len(found) for found in _FENCE.findall(text))]) + "`"
    return f"{fence}{''.join(language.split())[:20]}\n{text.rstrip()}\n{fence}\n\n"


def _language(metadata: msgspec.Raw) -> str:
    try:
        found = msgspec.json.decode(metadata, type=_Metadata)
    except msgspec.MsgspecError:
        return ""
    return found.language_info.name or found.kernelspec.language


def _joined(text: Text) -> str:
    return text if isinstance(text, str) else "".join(text)
