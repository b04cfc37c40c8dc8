"""Documents made on the fly, well-formed and hostile."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Sequence

WORD = (
    '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
    "<w:body>{}</w:body></w:document>"
)
CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
)


def pdf(pages: Sequence[str], *, more: str = "") -> bytes:
    """Return a PDF whose pages have these lines of ASCII. more: operators to add after those of each page."""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    kids = []
    for page in pages:
        lines = "".join(
            f"({line.translate({40: None, 41: None})}) Tj T*\n" for line in page.split("\n") if line
        )
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td\n{lines}ET\n{more}" if lines or more else ""
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {len(objects)} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Count {len(kids)} /Kids [{' '.join(kids)}] >>"
    out, offsets = io.BytesIO(b"%PDF-1.7\n"), []
    out.seek(0, io.SEEK_END)
    for number, content in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(f"{number} 0 obj\n{content}\nendobj\n".encode())
    start = out.tell()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    out.write(
        f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n".encode()
    )
    out.write(f"startxref\n{start}\n%%EOF\n".encode())
    return out.getvalue()


def written_pdf(
    pages: Sequence[str], *, outline: Sequence[tuple[str, int, int]] = (), **encrypt: str
) -> bytes:
    """Return a PDF, encrypted or with an outline of (title, page from 0, depth from 0)."""
    from pypdf import PdfReader, PdfWriter

    writer, parents = PdfWriter(PdfReader(io.BytesIO(pdf(pages)))), {}
    for title, page, depth in outline:
        parents[depth] = writer.add_outline_item(title=title, page_number=page, parent=parents.get(depth - 1))
    if encrypt:
        writer.encrypt(**encrypt)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def word() -> bytes:
    """Return a Word document with a title, headings, a list and a table."""
    import docx

    document = docx.Document()
    document.add_heading("The title", 0)
    document.add_heading("One", 1)
    document.add_paragraph("Caf\u00e9 and ").add_run("bold").bold = True
    document.add_paragraph("first", style="List Bullet")
    document.add_paragraph("second", style="List Bullet")
    document.add_heading("Deeper", 2)
    table = document.add_table(2, 2)
    for row, cells in zip(table.rows, (("name", "size"), ("a", "1")), strict=True):
        for cell, text in zip(row.cells, cells, strict=True):
            cell.text = text
    document.add_paragraph("after")
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def word_of(body: str, *, before: str = "") -> bytes:
    """Return a Word document with this XML as its body. before: text to put before the root element."""
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
    return zipped(
        {
            "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>',
            "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
            f'<Relationship Id="r1" Type="{relation}" Target="word/document.xml"/></Relationships>',
            "word/document.xml": f"{before}{WORD.format(body)}",
        }
    )


def zipped(entries: dict[str, str | bytes]) -> bytes:
    """Return a ZIP archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return out.getvalue()


def epub(chapters: Sequence[str | bytes], **more: str | bytes) -> bytes:
    """Return an EPUB with these chapters in its spine, stored in a different order."""
    names = [f"ch%20{n}.xhtml" for n in range(len(chapters))]
    items = "".join(
        f'<item id="i{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(names)
    )
    refs = "".join(f'<itemref idref="i{n}"/>' for n in range(len(chapters)))
    package = f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{refs}</spine></package>'
    files = {
        f"OEBPS/{name.replace('%20', ' ')}": chapter for name, chapter in zip(names, chapters, strict=True)
    }
    return zipped(
        {
            "mimetype": "application/epub+zip",
            **dict(reversed(files.items())),
            "META-INF/container.xml": CONTAINER,
            "OEBPS/book.opf": package,
            **more,
        }
    )


def lying(data: bytes, name: str, size: int) -> bytes:
    """Return a ZIP archive that claims that an entry unpacks to `size` bytes."""
    at = data.rindex(name.encode()) - 46  # its entry in the central directory
    return data[: at + 24] + struct.pack("<I", size) + data[at + 28 :]


def chapter(title: str, text: str) -> str:
    """Return a chapter's XHTML."""
    return f"<html><head><title>Book</title></head><body><h1>{title}</h1><p>{text}</p></body></html>"


def sound() -> list[tuple[str, bytes]]:
    """Return documents of all kinds that a child process reads."""
    html = b"<html><title>T</title><body><h1>A</h1><table><tr><td>x<td>y</table><ul><li>z</ul><pre>k</pre>"
    return [
        ("a.html", html * 20),
        ("a.pdf", pdf(["one", "two two", ""])),
        ("b.pdf", written_pdf(["one", "two"], outline=[("one", 0, 0), ("two", 1, 1)])),
        ("a.docx", word()),
        ("a.epub", epub([chapter("One", "first"), chapter("Two", "second")])),
    ]


PIECES = (
    b"\0",
    b"\xff" * 4,
    b"<",
    b">",
    b"/",
    b"<<",
    b"R",
    b"[",
    b"obj",
    b"PK",
    b"\x1b[2J",
    b"9" * 30,
    b"\x7f" * 9,
)


def mutated(seed: int) -> tuple[str, bytes]:
    """Return a damaged document's name and bytes."""
    rng = random.Random(seed)
    name, whole = rng.choice(sound())
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8, 30))):
        at = rng.randrange(len(data) + 1)
        piece = rng.choice(PIECES)
        match rng.randrange(5):
            case 0:
                data[at : at + len(piece)] = piece
            case 1:
                data[at:at] = piece
            case 2:
                del data[at : at + rng.randrange(1, 16)]
            case 3 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case _ if rng.random() < 0.2:
                del data[max(at, 8) :]
    return name, bytes(data)
