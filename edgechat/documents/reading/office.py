"""HTML, DOCX (which mammoth converts to HTML) and EPUB as text. Runs in the child process."""

from __future__ import annotations

import io
import posixpath
import zipfile
from collections.abc import Iterator
from urllib.parse import unquote
from xml.etree import ElementTree

from edgechat.base.network.html_text import decoded, html_text
from edgechat.base.process.file_decoder import NotDecodable, PackageMissing
from edgechat.base.text import mebibytes
from edgechat.documents.reading.reader import AGAIN, PAGE

_LOCKS = ("META-INF/rights.xml", "META-INF/license.lcpl", "META-INF/sinf.xml")
"""Files found in EPUBs with digital rights management (DRM)."""
_STYLES = "p[style-name='Title'] => h1:fresh\np[style-name='Subtitle'] => p:fresh\n"
"""Styles that mammoth does not map by default."""
_CONTAINER = "META-INF/container.xml"


def read_html(data: bytes) -> Iterator[str]:
    """Yield the text of an HTML page."""
    return html_text(decoded(data))


def read_docx(data: bytes) -> Iterator[str]:
    """Yield the text of a Word document. Raises NotDecodable."""
    try:
        import mammoth
    except ImportError:
        raise PackageMissing(
            "is a Word document, for which mammoth is not installed",
            'To read it: pip install "edgechat[documents]"',
        ) from None
    with _opened(data, "a Word document (.docx)") as found:
        if not any(name.startswith("word/") for name in found.namelist()):
            raise NotDecodable("is not a Word document (.docx)", AGAIN)
    html = mammoth.convert_to_html(io.BytesIO(data), convert_image=lambda _: [], style_map=_STYLES).value
    yield from html_text(html, with_title=False)


def read_epub(data: bytes) -> Iterator[str]:
    """Yield PAGE and the text of each chapter, in the order of the spine. Raises NotDecodable."""
    with _opened(data, "an EPUB") as book:
        if not {*_LOCKS}.isdisjoint(book.namelist()):
            raise NotDecodable("is protected by DRM", "Get it without DRM, or as PDF.")
        try:
            chapters = _spine(book)
        except (KeyError, zipfile.BadZipFile, ElementTree.ParseError) as error:
            raise NotDecodable("is not an EPUB, or is damaged", AGAIN) from error
        problem, has_text = "", False
        for name in chapters:
            try:
                html = decoded(_part(book, name))
            except (KeyError, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
                problem = str(error)
                continue
            is_begun = False
            for piece in html_text(html, with_title=False):
                if not is_begun and piece.strip():  # covers have no text
                    is_begun = has_text = True
                    piece = PAGE + piece
                yield piece
            yield "\n\n"
        if problem and not has_text:
            raise NotDecodable(f"is damaged or incomplete ({problem})", AGAIN)


def _spine(book: zipfile.ZipFile) -> list[str]:
    """Return the names of the chapters in the archive, without duplicates."""
    root = _xml(book, _CONTAINER).find(".//{*}rootfile")
    package = "" if root is None else root.get("full-path", "")
    tree, folder = _xml(book, package), posixpath.dirname(package)
    hrefs = {
        item.get("id"): item.get("href", "")
        for item in tree.iterfind(".//{*}manifest/{*}item")
        if "html" in item.get("media-type", "")
    }
    chapters = [hrefs[ref] for item in tree.iterfind(".//{*}itemref") if (ref := item.get("idref")) in hrefs]
    names = (posixpath.join(folder, unquote(href.partition("#")[0])) for href in chapters)
    return list(dict.fromkeys(map(posixpath.normpath, names)))


def _xml(book: zipfile.ZipFile, name: str) -> ElementTree.Element:
    return ElementTree.fromstring(_part(book, name))


_MOST_ENTRIES = 20_000
_MOST_BYTES = 512 * 2**20
"""Maximum total size of all unpacked entries, including pictures."""
_MOST_RATIO, _FREE = 200, 8 * 2**20
"""Maximum compression ratio of an entry, and the size below which the ratio is ignored."""
_MOST_PART = 128 * 2**20
"""Maximum number of bytes read from one entry."""


def _opened(data: bytes, what: str) -> zipfile.ZipFile:
    """Open an archive, rejecting ZIP bombs. Raises NotDecodable.

    No entry is unpacked beyond the size given in its header, so a false size counts as damage.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise NotDecodable(f"is not {what}, or is damaged", AGAIN) from error
    entries = archive.infolist()
    if len(entries) > _MOST_ENTRIES or sum(entry.file_size for entry in entries) > _MOST_BYTES:
        raise NotDecodable(
            f"unpacks to more than {mebibytes(_MOST_BYTES)} or {_MOST_ENTRIES} files",
            "Split it into several files, or leave its pictures out.",
        )
    for entry in entries:
        if entry.file_size > _FREE and entry.file_size > _MOST_RATIO * max(1, entry.compress_size):
            raise NotDecodable("unpacks to far more than its size, like a ZIP bomb", "Do not open it.")
        if entry.flag_bits & 1:
            raise NotDecodable("is encrypted", "Save it without a password.")
    return archive


def _part(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of an entry, up to `_MOST_PART`. Raises KeyError and BadZipFile."""
    with archive.open(name) as entry:
        return entry.read(_MOST_PART)
