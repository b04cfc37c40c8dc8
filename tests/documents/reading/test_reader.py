"""Every kind of document is read with its headings and places; `test_hostile.py` has what is not."""

import builtins
import io
import json
import zipfile

import pytest

from edgechat.base.errors import DocumentError
from edgechat.base.network.html_text import html_text
from edgechat.base.process.file_decoder import NotDecodable
from edgechat.documents.reading import office, pdf, reader
from edgechat.documents.reading.child import LONGEST_LINE, PAGE, tidied
from edgechat.documents.reading.notebook import MOST_OUTPUT
from edgechat.documents.reading.reader import DocumentReader
from tests.documents.reading.files import chapter, epub, word, word_of, written_pdf
from tests.documents.reading.files import pdf as pdf_of


@pytest.fixture(scope="module")
def documents():
    with DocumentReader() as one:
        yield one


@pytest.fixture
def childless(monkeypatch):
    def start(role):
        raise AssertionError("a child process was started")

    monkeypatch.setattr("edgechat.base.process.file_decoder.Child", start)
    return DocumentReader()


def test_text_takes_no_process(childless, tmp_path):
    for name in ("a.txt", "b.md", "c.py", "README", "d.unknown"):
        (tmp_path / name).write_bytes("# Größe\r\n\r\nzwei\rdrei".encode())
        found = childless.read(tmp_path / name)
        assert (found.text, found.unit, found.is_cut) == ("# Größe\n\nzwei\ndrei\n", "line", False)
    assert childless.read(b"", name="empty.txt").text == ""


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_character_sets(childless, charset):
    text = "Ein schöner Satz – mit Umlauten: äöü ÄÖÜ ß.\n" * 3
    assert childless.read(text.encode(charset), name="a.txt").text == text


def test_a_character_set_that_nobody_named(childless):
    with pytest.raises(DocumentError) as caught:
        childless.read("Это предложение написано по-русски.".encode("koi8-r"), name="a.txt")
    assert str(caught.value) == "a.txt has an unknown character encoding."
    assert caught.value.hint == "Save it as UTF-8."


def test_what_terminals_obey_is_left_out(childless):
    text = "a\x1b[31mb\x07\tc\x9bd\u202ee\u2066f\0g" + "x" * 9000
    assert childless.read(b"y" * 8192 + text.encode(), name="a.txt").text == (
        "y" * 8192 + "a[31mb\tcdefg" + "x" * 9000 + "\n"
    )


def test_lines_of_text_stay_as_they_are(childless):
    text = "one " * 100_000 + "\ntwo\u2028still\x0ctwo\n\n\n\nsix\n"
    lines = childless.read(text.encode(), name="a.txt").text.split("\n")
    assert lines[1:] == ["two stilltwo", "", "", "", "six", ""]
    assert len(lines[0]) == 400_000


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", 'name,size\n"b, c",2\n', "name\tsize\nb, c\t2\n"),
        ("a.csv", 'name;size\n"two\nlines";2,5\n', "name\tsize\ntwo lines\t2,5\n"),
        ("a.tsv", "a\tb\n1\t2\n", "a\tb\n1\t2\n"),
        ("a.csv", 'a,"never closed\n' + "1,2\n" * 50_000, 'a,"never closed\n' + "1,2\n" * 50_000),
        ("a.csv", "", ""),
    ],
)
def test_rows(childless, name, text, expected):
    found = childless.read(text.encode(), name=name)
    assert (found.text, found.unit) == (expected, "row")


def test_html(documents):
    html = """<!doctype html><meta charset=latin-1><title>A page</title><script>no()</script>
    <h2>Caf\xe9</h2><p>One\n two</p><ol><li><p>a</p></li> <li>b<ul><li>c</li></ul></li></ol>
    <table><tr><th>x</th> <th>y</th></tr><tr><td><p>1</p></td><td></td><td>3</td></tr></table>
    <pre># no heading\n  kept</pre><p>so\xadft \x1b[2J<a href="https://x.org">link</a>"""
    found = documents.read(html.encode("latin-1"), name="a.htm")
    assert found.text.split("\n") == [
        "# A page",
        "",
        "## Café",
        "",
        "One two",
        "",
        "- a",
        "- b",
        "  - c",
        "",
        "x\ty",
        "1\t\t3",
        "",
        "```",
        "# no heading",
        "  kept",
        "```",
        "",
        "soft [2Jlink",
        "",
    ]
    assert found.unit == "paragraph"


def test_word(documents):
    found = documents.read(word(), name="a.docx")
    assert found.text == (
        "# The title\n\n# One\n\nCafé and bold\n\n- first\n- second\n\n"
        "## Deeper\n\nname\tsize\na\t1\n\nafter\n"
    )
    assert found.unit == "paragraph"


def test_word_with_tracked_changes_and_fields(documents):
    body = (
        "<w:p><w:ins><w:r><w:t>inserted</w:t></w:r></w:ins><w:del><w:r><w:delText>no</w:delText></w:r></w:del></w:p>"
        "<w:sdt><w:sdtContent><w:p><w:r><w:t>a field</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    )
    assert documents.read(word_of(body), name="a.docx").text == "inserted\n\na field\n"


def test_pages(documents):
    found = documents.read(pdf_of(["one\nstill one", "", "# three", "four"]), name="a.pdf")
    assert found.text == "one\nstill one\n # three\nfour\n"
    assert (found.unit, found.starts, found.is_cut) == ("page", (1, 3, 3, 4), False)


def test_headings_of_a_pdf_are_those_of_its_outline(documents):
    outline = [("Introduction", 0, 0), ("Why this is so", 1, 1), ("Elsewhere", 1, 0)]
    pages = [
        "1 Introduction\nIt is an exam-\nple, well.",
        "1.1  Why this is so\nIntroduction\nEnd . . . . . . . . 7",
    ]
    found = documents.read(written_pdf(pages, outline=outline), name="a.pdf")
    assert found.text == (
        "# 1 Introduction\n\nIt is an example, well.\n## 1.1  Why this is so\n\nIntroduction\nEnd ... 7\n"
    )


def test_a_document_is_what_its_bytes_say(documents):
    assert documents.read(pdf_of(["hello"]), name="a.txt").unit == "page"


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_encrypted_pdfs(documents, algorithm):
    opens = written_pdf(["hello"], user_password="", owner_password="x", algorithm=algorithm)
    assert documents.read(opens, name="a.pdf").text == "hello\n"
    closed = written_pdf(["hello"], user_password="x", algorithm=algorithm)
    with pytest.raises(DocumentError, match=r"^a.pdf is encrypted, and needs a password\.$"):
        documents.read(closed, name="a.pdf")


def test_scans(documents):
    with pytest.raises(DocumentError, match=r"has no text: its pages are images") as caught:
        documents.read(pdf_of(["", ""], more="0 0 9 9 re f"), name="a.pdf")
    assert "ocrmypdf" in str(caught.value.hint)


def test_chapters(documents):
    cover = "<html><body><img src='cover.jpg'/></body></html>"
    book = epub([cover, chapter("One", "first"), chapter("Two", "second &amp; last").encode("utf-16")])
    found = documents.read(book, name="a.epub")
    assert found.text == "# One\n\nfirst\n\n# Two\n\nsecond & last\n"
    assert (found.unit, found.starts) == ("chapter", (1, 5))


def test_a_book_with_a_damaged_chapter(documents):
    book = epub([chapter("One", "first"), chapter("Two", "lost")])
    with zipfile.ZipFile(io.BytesIO(book)) as archive:
        at = archive.getinfo("OEBPS/ch 1.xhtml").header_offset + 60
    found = documents.read(book[:at] + b"\0\0\0\0" + book[at + 4 :], name="a.epub")
    assert found.text == "# One\n\nfirst\n"


def test_without_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *args):
        if name.partition(".")[0] in ("pypdf", "mammoth"):
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    for read, data, what in ((pdf.read_pdf, b"", "pypdf"), (office.read_docx, b"", "mammoth")):
        with pytest.raises(NotDecodable, match=f"{what} is not installed") as caught:
            next(read(data))
        assert 'pip install "edgechat[documents]"' in caught.value.hint


def test_files_that_cannot_be_read(documents, tmp_path):
    with pytest.raises(DocumentError, match=r"^no\.txt cannot be read: No such file"):
        documents.read(tmp_path / "no.txt")
    with pytest.raises(DocumentError, match="cannot be read"):
        documents.read(tmp_path)
    with (tmp_path / "big.txt").open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(DocumentError, match=r"^big\.txt is larger than 64 MiB, the limit\.$"):
        documents.read(tmp_path / "big.txt")


@pytest.mark.slow
def test_long_text_is_cut_after_a_line(documents, monkeypatch):
    monkeypatch.setattr(reader, "MAX_TEXT", 10_000)
    for name, data in (
        ("a.txt", "zwölf\n".encode() * 5000),
        ("a.html", "<p>zwölf".encode() * 5000),
    ):
        found = documents.read(data, name=name)
        assert found.is_cut
        assert 9_900 < len(found.text.encode()) <= 10_000
        assert set(found.text.split()) == {"zwölf"}
    found = documents.read(pdf_of(["page"] * 2500), name="a.pdf")
    count = found.text.count("\n")
    assert (found.text, found.is_cut) == ("page\n" * count, True)
    assert found.starts == tuple(range(1, count + 1))
    assert 1_500 < count < 2_000
    one = documents.read("ö".encode() * 9000, name="a.txt")
    assert (one.is_cut, one.text) == (True, "ö" * 5000 + "\n")
    two = documents.read(("a" + "ö" * 9000).encode(), name="a.txt")
    assert (two.is_cut, two.text) == (True, "a" + "ö" * 4999 + "\n")
    wide = documents.read(("wide\n" * 2000).encode("utf-16"), name="a.txt")
    assert (wide.is_cut, wide.text[:10], wide.text[-5:]) == (True, "wide\nwide\n", "wide\n")


def test_long_lines_are_broken_at_spaces():
    lines = "".join(tidied(iter(["word " * 1000, "x" * 5000, "\n\n\n\n", PAGE + " \n", "next"]))).split("\n")
    assert lines[:2] == [("word " * 400).rstrip()] * 2
    assert max(map(len, lines)) <= LONGEST_LINE
    assert "".join(lines).replace(" ", "") == "word" * 1000 + "x" * 5000 + PAGE + "next"


def test_elements_that_are_never_closed():
    html = (
        "<head><title>T</title><p>shown<svg><svg></svg>hidden</style></svg> too<ul><li>a</ol></ul></ul><td>b"
    )
    assert "".join(html_text(html)) == "# T\n\nshown too\n\n- a\n\nb"


def notebook(*cells, **fields):
    metadata = {"language_info": {"name": "python"}}
    return json.dumps({"nbformat": 4, "metadata": metadata, "cells": list(cells)} | fields).encode()


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def test_notebooks_are_read_a_cell_after_the_other(documents):
    table = {"text/html": "<table>", "image/png": "aGk=" * 9999, "text/plain": ["   n\n", "0  1"]}
    data = notebook(
        {"cell_type": "markdown", "source": ["# Zebras\n", "\n", "We count."]},
        code(
            ["for n in range(2):\n", "    print(n)"],
            {"output_type": "stream", "name": "stdout", "text": ["0\n", "1\n"]},
            {"output_type": "execute_result", "data": table},
        ),
        code("", {"output_type": "display_data", "data": {"image/png": "aGk="}}),
        code(
            "1/0", {"output_type": "error", "ename": "ZeroDivisionError", "evalue": "\x1b[31mby zero\x1b[0m"}
        ),
    )
    found = documents.read(data, name="a.ipynb")
    assert found.text == (
        "# Zebras\n\nWe count.\n\n"
        "```python\nfor n in range(2):\n    print(n)\n```\n\n"
        "```output\n0\n1\n```\n\n```output\n   n\n0  1\n```\n\n"
        "```python\n1/0\n```\n\n```output\nZeroDivisionError: by zero\n```\n"
    )
    lines = found.text.split("\n")
    assert [lines[start - 1] for start in found.starts] == ["# Zebras", "```python", "```python", "```python"]
    assert found.unit == "cell"


def test_notebooks_of_nbformat_3(documents):
    outputs = [
        {"output_type": "stream", "stream": "stdout", "text": ["out"]},
        {"output_type": "pyout", "text": ["1"], "prompt_number": 1},
        {"output_type": "pyerr", "ename": "Oops", "evalue": "no", "traceback": []},
    ]
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Old"]},
        {"cell_type": "code", "language": "julia", "input": ["x = 1"], "outputs": outputs},
    ]
    old = {"nbformat": 3, "worksheets": [{"cells": cells}]}
    assert documents.read(json.dumps(old).encode(), name="a.ipynb").text == (
        "## Old\n\n```julia\nx = 1\n```\n\n"
        "```output\nout\n```\n\n```output\n1\n```\n\n```output\nOops: no\n```\n"
    )


def test_a_fence_in_a_cell_ends_no_block_and_long_outputs_are_cut(documents):
    data = notebook(code("s = '''\n````\n'''"), code("log()", {"text": "x\n" * 9000}))
    text = documents.read(data, name="a.ipynb").text
    assert "`````python\ns = '''\n````\n'''\n`````\n" in text
    assert text.count("x\n") == MOST_OUTPUT // 2
    assert text.endswith("…\n```\n")


@pytest.mark.parametrize(
    "data",
    [
        b'{"nbformat": 4, "cells": [',
        b"not json",
        b'{"cells": []}',
        b"[" * 100_000,
        notebook(cells={"a": 1}),
    ],
)
def test_what_is_no_notebook_is_told(documents, data):
    with pytest.raises(DocumentError, match=r"^a.ipynb is not a notebook, or is damaged \(.+\)\.$"):
        documents.read(data, name="a.ipynb")


def test_a_cell_that_is_none_is_passed_over_and_keeps_its_number(documents):
    odd = [7, {"cell_type": "code", "source": {"a": 1}}, code("x", {"data": {"text/plain": 1}})]
    found = documents.read(notebook(*odd, {"cell_type": "raw", "source": "kept"}), name="a.ipynb")
    assert (found.text, found.starts) == ("```python\nx\n```\n\nkept\n", (1, 1, 1, 5))
