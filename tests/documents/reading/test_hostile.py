"""Whatever is in a file: its text, or an error within seconds, and the next file is read."""

import time
import zlib
from collections.abc import Callable

import pytest

from edgechat.base.errors import DocumentError
from edgechat.base.text import printable
from edgechat.documents.reading import reader
from edgechat.documents.reading.child import TIME_LIMIT, ReadDocument
from edgechat.documents.reading.reader import DocumentReader, Extracted
from tests.documents.reading.files import (
    CONTAINER,
    chapter,
    epub,
    lying,
    mutated,
    pdf,
    word,
    word_of,
    zipped,
)

pytestmark = pytest.mark.slow

Data = bytes | Callable[[], bytes]
"""What is large is made when its test runs."""
BOMB = '<!DOCTYPE x [<!ENTITY a0 "aaaaaaaaaa">{}]>'.format(
    "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))
)
RUN = "<w:p><w:r><w:t>{}</w:t></w:r></w:p>"
DAMAGED = "is damaged or incomplete"
NO_EPUB, NO_WORD = "is not an EPUB, or is damaged", "is not a Word document (.docx)"
ZIP_BOMB = "unpacks to far more than its size, like a ZIP bomb"
PASSWORDS = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'


@pytest.fixture(scope="module")
def documents():
    with DocumentReader() as one:
        yield one


def flate_bomb():
    """Return a PDF whose second page unpacks to a gigabyte."""
    packed = zlib.compress(zlib.compress(bytes(10**9), 1), 9)
    data = pdf(["one", "two"])
    start = data.index(b"6 0 obj")
    stream = b"<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n" % len(packed) + packed + b"\n"
    return data[:start] + b"6 0 obj\n" + stream + data[data.index(b"endstream", start) :]


def refused(documents, name, data):
    with pytest.raises(DocumentError) as caught:
        documents.read(data() if callable(data) else data, name=name)
    assert caught.value.hint
    return str(caught.value).removeprefix(f"{name} ").removesuffix(".")


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        (
            "a.docx",
            lambda: word_of(RUN.format(" " * 10**8)),
            "unpacks to far more than its size, like a ZIP bomb",
        ),
        ("a.epub", lambda: epub([b"<p>" + b"a" * 10**8]), ZIP_BOMB),
        (
            "a.epub",
            lambda: zipped({str(n): b"" for n in range(20_001)}),
            "unpacks to more than 512 MiB",
        ),
        ("a.docx", lying(word(), "word/document.xml", 100), f"{DAMAGED} (Bad CRC-32"),
        (
            "a.epub",
            lying(epub([chapter("A", "x" * 1000)]), "OEBPS/ch 0.xhtml", 10),
            "is damaged or incomplete",
        ),
        (
            "a.docx",
            word_of(RUN.format("&a11;"), before=BOMB),
            f"{DAMAGED} (limit on input",
        ),
        (
            "a.epub",
            zipped({"META-INF/container.xml": BOMB + f"<a>&a11;</a>{CONTAINER}"}),
            "is not an EPUB, or is damaged",
        ),
        ("a.epub", epub(["x"], **{"META-INF/rights.xml": "<rights/>"}), "is protected by DRM"),
        ("a.docx", lambda: word_of("<w:sdt><w:sdtContent>" * 50_000), DAMAGED),
        ("a.pdf", pdf(["one", "two"]).replace(b"/Kids [5 0 R 7 0 R]", b"/Kids [2 0 R 2 0 R]"), DAMAGED),
        ("a.pdf", b"%PDF-1.7\n" + bytes(1000), DAMAGED),
        ("a.pdf", b"", DAMAGED),
        ("a.docx", b"hello", f"{NO_WORD}, or is damaged"),
        ("a.docx", zipped({"a": "b"}), NO_WORD),
        ("a.epub", zipped({"a": "b"}), NO_EPUB),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0", "is binary, not text"),
        ("a.txt", bytes(range(1, 9)) * 1000, "is binary, not text"),
        ("a.md", b"\x81\x8d" * 9 + b"text" * 100, "has an unknown character encoding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(documents, name, data, problem):
    assert refused(documents, name, data).startswith(problem)


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.html", b"<div>" * 100_000 + b"deep" + b"</div>" * 100_000, "deep\n"),
        ("a.html", b"<p>a<template>" * 100_000 + b"deep", "a\n"),
        ("a.html", b"<meta charset=idna><p>x" * 100_000, "x\n\n" * 99_999 + "x\n"),
        ("a.html", b"<p>a\0b\x1b]0;title\x07<p>&#x202e;c&#27;[2J", "ab]0;title\n\nc[2J\n"),
        ("a.epub", lambda: lying(epub([chapter("A", "x")]), "OEBPS/ch 0.xhtml", 5_000_000), "# A\n\nx\n"),
        ("a.epub", epub([chapter("A", "x")], **{"../../out": "x"}), "# A\n\nx\n"),
        (
            "a.docx",
            word_of(RUN.format("&e;"), before=PASSWORDS),
            "",
        ),
        ("a.pdf", flate_bomb, "one\n"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_what_is_read_all_the_same(documents, name, data, text):
    assert documents.read(data() if callable(data) else data, name=name).text == text


def test_what_takes_too_long(monkeypatch):
    """What was read until then is kept, and the next file is read."""
    monkeypatch.setattr(reader, "TIME_LIMIT", 2.5)
    with DocumentReader() as documents:
        assert documents.read(b"<p>x", name="a.html").text == "x\n"  # it has started
        began = time.monotonic()
        pages = documents.read(pdf(["page\n" * 40] * 10_000), name="a.pdf")
        assert pages.is_cut
        assert 0 < len(pages.starts) < 10_000
        assert pages.text == "page\n" * 40 * len(pages.starts)
        hanging = documents.read(pdf(["one", "(x) Tj " * 3_000_000]), name="a.pdf")
        assert hanging.text.startswith("one\n")  # and no more where the second page took too long
        assert hanging.is_cut
        assert documents.read(b"<p>x" * 20_000 + b"<a " * 3_000_000, name="a.html").is_cut
        assert refused(documents, "a.html", b"<!--" * 3_000_000).startswith(
            ("has no text", "yields no text", "cannot be")
        )
        assert time.monotonic() - began < 4 * 2.5 + 10
        assert documents.read(b"<p>x", name="a.html") == Extracted("x\n", "paragraph")


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(reader, "MEMORY_LIMIT", 64 * 2**20)
    with DocumentReader() as documents:
        page = b"<p>" + b"<b>" * 10_000_000
        assert "MiB of memory" in refused(documents, "a.html", page)
        assert documents.read(b"<p>x", name="a.html").text == "x\n"


def test_a_child_that_dies_costs_one_file(tmp_path):
    with DocumentReader() as documents:
        assert documents.read(b"<p>x", name="a.html").text == "x\n"
        child = documents._child
        assert child is not None
        child._process.kill()
        child._process.wait()
        assert documents.read(b"<p>y", name="a.html").text == "y\n"


def test_a_child_that_dies_amid_a_file_leaves_what_it_has_read(monkeypatch):
    with DocumentReader() as documents:
        ask = documents._ask

        def dying(question, name, *, seconds=None):
            answer = ask(question, name, seconds=seconds)
            if isinstance(question, ReadDocument):
                assert documents._child is not None
                documents._child._process.kill()
                documents._child._process.wait()
            return answer

        monkeypatch.setattr(documents, "_ask", dying)
        found = documents.read(b"<p>word " * 10_000, name="a.html")
        assert found.text
        assert found.is_cut


def survives(documents, seeds):
    for seed in seeds:
        name, data = mutated(seed)
        began = time.monotonic()
        try:
            found = documents.read(data, name=name)
        except DocumentError as error:
            problem = error.message
        else:
            problem = f"{name} is read."
            assert not found.text or found.text.endswith("\n")
            assert found.text == printable(found.text)
            assert list(found.starts) == sorted(found.starts)
        assert problem.startswith(name)
        assert problem.endswith(".")
        assert time.monotonic() - began < TIME_LIMIT + 20, seed


def test_mutated_documents(documents):
    survives(documents, range(100))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_mutated_documents_without_number(documents, part):
    survives(documents, range(1000 + 1000 * part, 2000 + 1000 * part))
