"""PDFs as text, page by page, using pypdf. Runs in the child process."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgechat.base.process.file_decoder import NotDecodable, PackageMissing
from edgechat.base.text import one_line
from edgechat.documents.reading.reader import AGAIN, PAGE

if TYPE_CHECKING:
    from pypdf import PdfReader

_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u2010]\n(?=[^\W\d_])(?=[^A-ZÄÖÜÀ-ÞА-ЯΑ-Ω])")
_LEADERS = re.compile(r" ?(?:\. ?){5,}")
_NUMBER = re.compile(r"^\s*[\d.]+\s")
_MOST_HEADINGS, _LONGEST_HEADING = 5000, 200
_INSTALL = 'To read it: pip install "edgechat[documents]"'
_LOCKED = ("is encrypted, and needs a password", "Save it without a password.")


def read_pdf(data: bytes) -> Iterator[str]:
    """Yield PAGE and the text of each page, skipping whatever cannot be read. Raises NotDecodable."""
    reader = _opened(data)
    headings = _headings(reader)
    problem, has_text = "", False
    for number, page in enumerate(reader.pages):
        text = ""
        try:
            text = page.extract_text().strip()
        except Exception as error:
            problem = one_line(str(error), 120) or type(error).__name__
        has_text = has_text or bool(text)
        text = _LEADERS.sub(" ... ", _HYPHEN.sub("", text))
        yield PAGE + _marked(text, headings.get(number, {})) + "\n"
    if not has_text and problem:
        raise NotDecodable(f"is damaged or incomplete ({problem})", AGAIN)
    if not has_text:
        raise NotDecodable(
            "has no text: its pages are images, as in a scan",
            "Add text by character recognition (OCR): ocrmypdf IN.pdf OUT.pdf",
        )


def _opened(data: bytes) -> PdfReader:
    try:
        from pypdf import PdfReader
        from pypdf.errors import DependencyError
    except ImportError:
        raise PackageMissing("is a PDF, for which pypdf is not installed", _INSTALL) from None
    reader = PdfReader(io.BytesIO(data))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise NotDecodable(*_LOCKED)
    except DependencyError:
        raise PackageMissing(
            "is encrypted with AES, for which cryptography is not installed", _INSTALL
        ) from None
    return reader


def _headings(reader: PdfReader) -> dict[int, dict[str, int]]:
    """Return, for each page, the outline entries that point to it, with their depths counted from 1."""
    found: dict[int, dict[str, int]] = {}
    waiting: list[tuple[int, Any]] = []
    with contextlib.suppress(Exception):  # many outlines are damaged, and an outline is optional
        waiting.append((1, reader.outline))
    for _ in range(_MOST_HEADINGS):
        if not waiting:
            break
        depth, entry = waiting.pop()
        if isinstance(entry, list):
            waiting += ((depth + isinstance(one, list), one) for one in entry)
            continue
        with contextlib.suppress(Exception):
            page = reader.get_destination_page_number(entry)
            if page is not None and (key := _key(str(entry.title))):
                found.setdefault(page, {})[key] = min(depth, 6)
    return found


def _marked(text: str, headings: dict[str, int]) -> str:
    """Return a page with its headings marked as in Markdown, and other lines that start with # escaped."""
    lines = []
    for line in text.split("\n"):
        depth = headings.get(_key(line)) if headings and len(line) < _LONGEST_HEADING else None
        lines.append(
            f"\n{'#' * depth} {line.strip()}\n" if depth else f" {line}" if line[:1] == "#" else line
        )
    return "\n".join(lines)


def _key(heading: str) -> str:
    """Return a key for matching a heading to a line on the page; ignores spaces, case and numbering."""
    return "".join(_NUMBER.sub("", heading[:_LONGEST_HEADING]).split()).casefold()
