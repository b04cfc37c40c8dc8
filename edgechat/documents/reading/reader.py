"""Reader for untrusted documents, and the kinds of files that it can read.

Text, Markdown, code and CSV are read in this process; HTML, notebooks, PDF, DOCX and EPUB are read in a child
process that is reused for many files.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import re
import time
from pathlib import Path
from typing import Literal

import msgspec

from edgechat.base.errors import DocumentError, ReaderLost, ReaderMissing
from edgechat.base.process.file_decoder import FileDecoder, NotDecodable
from edgechat.base.text import printable

TIME_LIMIT = 20.0
"""Number of seconds allowed per file."""
MEMORY_LIMIT = 2**30
"""Memory limit for the child process, in bytes."""
AGAIN = "Save or download it again."
"""Hint for damaged files."""
PAGE = "\f"
"""Marks the start of each page, chapter or cell; never occurs in the text itself."""
MAX_TEXT = 16 * 2**20
"""Maximum size of a document's text, in bytes of UTF-8."""

_SPARE_SECONDS = 2.0
"""Pages are requested only while at least this much time is left; reading one takes less."""

Kind = Literal["text", "markdown", "html", "code", "csv", "notebook", "pdf", "docx", "epub"]

_SUFFIXES: dict[Kind, str] = {
    "text": "txt text log rst adoc asciidoc org tex bib srt vtt nfo",
    "markdown": "md markdown mdown mkd mdx qmd rmd",
    "html": "html htm xhtml",
    "code": """
        ada adb ads agda asm awk bas bash bat bazel bzl c c++ cc cfg cjs cl clj cljs cljc cmake cmd
        coffee conf cpp cr cs csproj css cu cuh cxx d dart desktop diff el elm erl ex exs f f03 f90
        f95 fish fs fsx glsl go gradle graphql groovy h h++ hcl hh hpp hrl hs hxx ini inl ino ipp
        java jl js json json5 jsonc jsonl jsx kt kts less lisp lua m mak makefile mjs mk ml mli mm
        mod nim nix nu pas patch php pl plist pm po pp proto properties ps1 psm1 pug purs py pyi pyx
        r rake rb re rkt rs s sass sbt scala scm scss sh sln sol sql sty sv svelte swift tcl tf toml
        ts tsx typ v vb vhd vhdl vim vue wgsl xml xsd xsl xslt yaml yml zig zsh
    """,
    "csv": "csv tsv tab psv",
    "notebook": "ipynb",
    "pdf": "pdf",
    "docx": "docx docm dotx",
    "epub": "epub",
}
_NAMES: dict[Kind, str] = {
    "text": "readme license licence copying notice authors contributors changelog changes news todo",
    "code": """
        makefile dockerfile containerfile jenkinsfile vagrantfile gemfile rakefile procfile justfile pipfile
        cmakelists.txt codeowners .gitignore .gitattributes .dockerignore .editorconfig
    """,
}
_KINDS_BY_SUFFIX = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_KINDS_BY_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# Generated files, meant to be read by programs: lock files, minified code, source maps.
_GENERATED = re.compile(
    r".*(\.lock|[.-]lock\.(json|ya?ml)|npm-shrinkwrap\.json|\.lockb|go\.sum|[.-]min\.\w+|\.bundle\.js|\.map)"
)
_SECRETS = re.compile(
    r"""
    (\.env.*) | (.+\.env) | (\.envrc)
    | (id_(rsa|dsa|ecdsa|ed25519)(_sk)?.*)
    | (.+\.(pem|key|p8|p12|pfx|ppk|jks|keystore|kdbx?|gpg|pgp|ovpn|tfstate|tfvars|keychain))
    | ([._](netrc|pgpass|my\.cnf|npmrc|pypirc|htpasswd|dockercfg|git-credentials|vault-token|boto|s3cfg))
    | (\.?(htpasswd|kubeconfig|shadow|wallet\.dat)) | (\.\w+_history) | (\.?terraformrc)
    | (.*(client|app)[_-]?secrets?.*\.json) | (.*service[_-]?account.*\.json) | (.*credentials?.*\.(json|csv))
    | (.*([._-]|^)(secrets?|tokens?|credentials?|passwords?|passwd|api[_-]?keys?)
       (\.(json|ya?ml|toml|ini|cfg|conf|txt|csv|xml|properties|db|enc))?)
    """,
    re.VERBOSE,
)
_SECRET_FOLDERS = frozenset((".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store"))


def kind_of(path: Path) -> Kind | None:
    """Return the kind of a document, judging by its file name; None for images, lock files and so on."""
    name = path.name.casefold()
    if _GENERATED.fullmatch(name):
        return None
    return _KINDS_BY_NAME.get(name) or _KINDS_BY_SUFFIX.get(Path(name).suffix[1:])


def is_secret(path: Path) -> bool:
    """Return whether a file may contain keys or passwords, judging by its name and folders."""
    return bool(_SECRETS.fullmatch(path.name.casefold())) or not _SECRET_FOLDERS.isdisjoint(path.parts[:-1])


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


ReadInChild = Literal["html", "notebook", "pdf", "docx", "epub"]


class ReadDocument(msgspec.Struct, frozen=True, tag=True):
    """Request for the first part of the text; the file must already have been sent."""

    kind: ReadInChild


class ReadOn(msgspec.Struct, frozen=True, tag=True):
    """Request for the next part."""


class DocumentPart(msgspec.Struct, frozen=True):
    """A part of the text, and what is wrong with the rest, if anything; `problem` completes 'FILE ...'."""

    text: str
    is_last: bool = False
    problem: str = ""
    hint: str = ""
    is_missing: bool = False
    """Whether the only problem is that a package is not installed."""


class Extracted(msgspec.Struct, frozen=True):
    r"""Text of a document, in lines that end with `\n`, with no control characters except tabs.

    Headings are marked as in Markdown (#, ##), and cells in a table row are separated by tabs. Lines and rows
    of text files keep their length; lines extracted from other files have at most 2,000 characters.
    """

    text: str
    unit: PlaceUnit
    """The unit used for places in the text. A row is a line; paragraphs are separated by blank lines."""
    starts: tuple[int, ...] = ()
    """First line of each page, chapter or cell, counting from 1.

    An empty one starts on the same line as the next one.
    """
    is_cut: bool = False
    """Whether the text is incomplete, because the rest is too long, too slow to read, or damaged."""


class DocumentReader(FileDecoder):
    """Reads documents; see `FileDecoder`."""

    role = what = "document"
    error, unready, lost = DocumentError, ReaderMissing, ReaderLost
    smaller = "Split it into several files."
    otherwise = "Open it in the program that made it, and save it from there as text or PDF."

    def __init__(self) -> None:
        super().__init__(seconds=TIME_LIMIT, memory=MEMORY_LIMIT)

    def read(self, source: Path | bytes, *, name: str | None = None) -> Extracted:
        """Return the text of a document, whose kind is determined from its name or first bytes.

        Raises DocumentError if it is not text, or is locked, damaged or too large; ReaderLost if it takes too
        long; ReaderMissing if the required package is not installed.
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
        """Return the text that can be read before a limit or damage is reached."""
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
            problem = f"yields no text within {TIME_LIMIT:.0f} seconds"
            raise self._problem(name, problem, self.smaller, ReaderLost)
        return _extracted("".join(parts), _UNITS[kind], is_cut=is_cut)


def _kind(path: Path, data: bytes) -> Kind:
    if data.startswith(b"%PDF-"):
        return "pdf"
    return kind_of(path) or "text"


def _extracted(text: str, unit: PlaceUnit, *, is_cut: bool) -> Extracted:
    """Build the result from text in which PAGE marks the start of each page."""
    if len(text) > MAX_TEXT // 4 and len(encoded := text.encode()) > MAX_TEXT:
        text = encoded[: encoded.rfind(b"\n", 0, MAX_TEXT) + 1].decode()
    starts, line = [], 1
    before, *pages = text.split(PAGE)
    for page in pages:
        starts.append(line)
        line += page.count("\n")
    return Extracted(before + "".join(pages), unit, tuple(starts), is_cut=is_cut)


_HEAD = 8192
"""Number of bytes examined to distinguish text from binary data."""
_MARKS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_CONTROLS = bytes(n for n in range(32) if n not in b"\t\n\r\f\x1b\b")
_MOST_CONTROLS, _MOST_FOREIGN = 0.02, 0.25
"""Maximum fractions of control characters in text, and of non-ASCII characters in Windows-1252."""
_ASCII = bytes(range(128))
_DELIMITERS = ",;\t|"
_LINE_ENDS = re.compile("\r\n?")


def decoded_text(data: bytes, *, most: int) -> tuple[str, bool]:
    """Return a file's text in printable form, and whether it was cut after the last line within `most` bytes.

    Line breaks are preserved. Raises NotDecodable if the file is not text.
    """
    charset = next((charset for mark, charset in _MARKS if data.startswith(mark)), "")
    head = data[:_HEAD]
    if not charset and (b"\0" in head or _share(head, _CONTROLS) > _MOST_CONTROLS):
        raise NotDecodable("is binary, not text", "Leave it out, or save its contents as text or PDF.")
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
    """Decode as UTF-8, or as Windows-1252 if the result is plausible."""
    try:
        return _decode(data, "utf-8", "strict", is_cut)
    except UnicodeDecodeError:
        if 1 - _share(data, _ASCII) <= _MOST_FOREIGN:
            with contextlib.suppress(UnicodeDecodeError):
                return data.decode("cp1252")
        raise NotDecodable("has an unknown character encoding", "Save it as UTF-8.") from None


def _decode(data: bytes, charset: str, errors: str, is_cut: bool) -> str:
    """Decode everything except a character left incomplete by a cut."""
    return codecs.getincrementaldecoder(charset)(errors).decode(data, final=not is_cut)


def _share(data: bytes, of: bytes) -> float:
    return 1 - len(data.translate(None, of)) / len(data) if data else 0.0


def rows(text: str) -> str:
    """Return CSV as lines of tab-separated cells; text that is not CSV is returned unchanged."""
    first = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count)
    try:
        return "".join(
            "\t".join(" ".join(cell.split()) for cell in row) + "\n"
            for row in csv.reader(text.splitlines(keepends=True), delimiter=delimiter)
        )
    except csv.Error:  # an unclosed quote turns the rest into one cell
        return text
