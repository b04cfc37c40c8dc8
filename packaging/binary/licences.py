"""LICENCES.txt: the full licences of everything that is actually inside a frozen edgechat.

    python packaging/binary/licences.py dist/edgechat-0.1.0-linux-x86_64 LICENCES.txt

Fails if anything lacks a licence text: nothing ships unlicensed. Run it with the Python that froze the
program, since it reads the distributions installed there.
"""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from crates import crates_in
from inside_python import Library, libraries_inside, with_copyleft
from origins import BOOTLOADER, OWN, UnknownOrigin, origins
from system_libraries import NoPackage, SystemPackage, common_texts, package_of

ROOT = Path(__file__).parents[2]
_TEXTS = Path(__file__).with_name("licence_texts")
_FILE = re.compile(r"(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)
_IS_CODE = (".py", ".pyc", ".pyi", ".so", ".json", ".yaml")
_LINE = "=" * 100

# Distributions that name a licence but do not include its text.
_TEXTS_ELSEWHERE = {
    "cobble": "cobble.txt",
    "nvidia-ml-py": "nvidia-ml-py.txt",
    "sentencepiece": "Apache-2.0.txt",
    "tokenizers": "Apache-2.0.txt",
}

# Notes to add to what a distribution says about itself.
_NOTES = {
    "llama_cpp_python": "llama.cpp and ggml, which its wheel contains, have an entry of their own.",
    BOOTLOADER: "Inside are its bootloader and its start-up modules. The exception in its licence allows to "
    "ship them with programs under any licence.",
}

# Licences of distributions that state them only in a sentence or in a file header.
_EXPRESSIONS = {
    BOOTLOADER: "GPL-2.0-or-later WITH Bootloader-exception",
    "cobble": "BSD-2-Clause AND MIT",
    "nvidia-ml-py": "BSD-3-Clause",
}

_INTRODUCTION = """\
edgechat is free software under the MIT licence. This archive contains software of others too, which makes it
run without anything to install. Here is all of it, with the licence of each, whole, save for two things:

- The runtimes of NVIDIA (CUDA, with cuBLAS) and Microsoft (Visual C++), where they are inside, are told by
  the address of their terms: agreements that their makers keep there, and that let them be shipped unchanged.
- Rust crates that are compiled into a distribution's library (llguidance's, pydantic_core's) are listed there
  by name and licence, as far as its wheel says which they are. Their texts are in their sources: no wheel
  brings them.

Other shared libraries that come inside a Python distribution (its `.libs` folder, or C code compiled into its
modules) are covered by that distribution's texts. Libraries that Python was built with have entries of their
own. Shared libraries that were taken from the system which edgechat was built on are listed with the package
that they came from.
"""


class MissingLicence(Exception):
    """Something in the program has no licence text."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A piece of software inside the program."""

    name: str
    version: str
    licence: str
    """An SPDX expression, or the vendor's name for the licence; empty if only the text names it."""
    homepage: str
    text: str
    note: str = ""


def write_licences(frozen: Path, out: Path) -> list[str]:
    """Write the licences of everything in a frozen folder to `out`; return the names of what it contains.

    Raises MissingLicence, which names everything without a licence text, or UnknownOrigin.
    """
    found = origins(frozen)
    inside_python = libraries_inside(found.of_python, found.of_system)
    entries = [_own(), _python(found.of_python), *map(_of_python, inside_python)]
    missing = with_copyleft(found.of_python)
    for name in sorted(found.distributions - {OWN}, key=str.lower):
        entry = of_distribution(metadata.distribution(name))
        if entry.text:
            entries.append(entry)
        else:
            missing.append(f"{name} {entry.version}")
        if entry.name == "llama_cpp_python":
            entries.append(_llama_cpp(entry.version))
    try:
        entries += _of_system(found.of_system)
    except NoPackage as error:
        missing.append(str(error))
    if missing:
        raise MissingLicence(f"There is no licence's text for: {'; '.join(missing)}")
    out.write_text(_written(entries), encoding="utf-8", newline="\n")
    return [entry.name for entry in entries]


def of_distribution(one: metadata.Distribution) -> Entry:
    """Return what an installed distribution says about itself; `text` is empty if it has no licence text."""
    texts = dict.fromkeys(text for path in _text_files(one) if (text := _read(path)))
    text = "\n\n".join(texts) or _text_in_metadata(one) or _text_elsewhere(one)
    crates = crates_in(one)
    if text and crates:
        text = "\n".join([text, "", "Rust crates in its library:", "", *(f"  {crate}" for crate in crates)])
    return Entry(
        name=one.name,
        version=one.version,
        licence=_expression(one),
        homepage=_homepage(one),
        text=text,
        note=_NOTES.get(one.name, ""),
    )


def _text_files(one: metadata.Distribution) -> Iterator[Path]:
    """Yield a distribution's licence files: the declared ones, plus any with names like LICENSE."""
    for path in one.files or ():
        in_licences = "licenses" in path.parts and path.parts[0].endswith(".dist-info")
        if in_licences or (_FILE.match(path.name) and not path.name.endswith(_IS_CODE)):
            yield Path(str(one.locate_file(path)))


def _text_in_metadata(one: metadata.Distribution) -> str:
    """Return the licence text that some distributions put where the licence's name belongs."""
    said = one.metadata.get("License") or ""
    return said if said.count("\n") > 5 else ""


def _text_elsewhere(one: metadata.Distribution) -> str:
    return _read(_TEXTS / _TEXTS_ELSEWHERE[one.name]) if one.name in _TEXTS_ELSEWHERE else ""


def _expression(one: metadata.Distribution) -> str:
    if one.name in _EXPRESSIONS:
        return _EXPRESSIONS[one.name]
    said = one.metadata.get("License-Expression") or one.metadata.get("License") or ""
    if said and "\n" not in said:
        return said
    named = [
        word.rpartition(" :: ")[2]
        for word in one.metadata.get_all("Classifier") or ()
        if word.startswith("License :: ")
    ]
    return ", ".join(named)


def _homepage(one: metadata.Distribution) -> str:
    said = one.metadata.get("Home-page")
    urls = dict(url.split(", ", 1) for url in one.metadata.get_all("Project-URL") or () if ", " in url)
    named = {label.lower(): url for label, url in urls.items()}
    wanted = ("homepage", "home", "source", "source code", "repository", "github", "documentation")
    return said or next((named[label] for label in wanted if label in named), "")


def _own() -> Entry:
    version = metadata.version(OWN)
    text = _read(ROOT / "LICENSE")
    note = "The guide's weights and its corpus are under it too."
    return Entry(OWN, version, "MIT", "https://github.com/edgechat/edgechat", text, note)


def _llama_cpp(version: str) -> Entry:
    text = _read(_TEXTS / "llama.cpp.txt")
    version = f"as in llama_cpp_python {version}"
    licence = "MIT AND BSD-2-Clause"  # the latter is for xxHash
    return Entry("llama.cpp and ggml", version, licence, "https://github.com/ggml-org/llama.cpp", text)


def _python(libraries: set[str]) -> Entry:
    folders = (Path(sysconfig.get_path("stdlib")), Path(sys.base_prefix))
    texts = [_read(folder / name) for folder in folders for name in ("LICENSE.txt", "LICENSE")]
    text = next(filter(None, texts), "")
    if not text:
        raise MissingLicence(f"There is no LICENSE.txt of Python in {folders[0]} or {folders[1]}.")
    page = "https://docs.python.org/{}.{}/license.html".format(*sys.version_info[:2])
    brought = ", ".join(sorted(name for name in libraries if "cpython" not in name and ".pyd" not in name))
    note = f"What others wrote of its standard library is listed at {page}."
    if brought:
        note += f" Files that came with it: {brought}."
    return Entry("Python", platform.python_version(), "PSF-2.0", "https://www.python.org", text, note)


def _of_python(library: Library) -> Entry:
    text = _read(_TEXTS / library.text)
    note = f"{library.copyright} Inside Python.".lstrip()
    return Entry(library.name, "", library.licence, library.homepage, text, note)


def _of_system(libraries: set[str]) -> Iterator[Entry]:
    """Yield the libraries' packages, then the licences that those packages only refer to."""
    of_packages: defaultdict[SystemPackage, list[str]] = defaultdict(list)
    for library in sorted(libraries):
        of_packages[package_of(library)].append(library)
    referred: dict[str, str] = {}
    for package, names in of_packages.items():
        referred |= common_texts(package.text)
        note = f"Taken from the system: {', '.join(names)}."
        yield Entry(package.name, package.version, "", package.homepage, package.text, note)
    for name, text in sorted(referred.items()):
        yield Entry(f"The text of {name}", "", "", "", text, "Named above by packages of the system.")


def _written(entries: Sequence[Entry]) -> str:
    width = max(len(f"{entry.name} {entry.version}") for entry in entries)
    listed = [f"  {f'{one.name} {one.version}':{width}}  {one.licence}".rstrip() for one in entries]
    return "\n".join([_INTRODUCTION, *listed, "", *map(_section, entries)])


def _section(entry: Entry) -> str:
    heading = [
        _LINE,
        f"{entry.name} {entry.version}".rstrip(),
        *(one for one in (entry.licence, entry.homepage, entry.note) if one),
        _LINE,
    ]
    return "\n".join([*heading, "", entry.text.strip("\n"), "\n"])


def _read(path: Path) -> str:
    """Return a file's text without trailing whitespace or CRLF, or '' if there is no such file."""
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return "\n".join(line.rstrip() for line in text.splitlines())


def main() -> int:
    """Write the licences for the folder in argv[1] to the file in argv[2]."""
    if len(sys.argv) != 3:
        print("usage: python packaging/binary/licences.py FROZEN-FOLDER FILE", file=sys.stderr)
        return 2
    try:
        names = write_licences(Path(sys.argv[1]), Path(sys.argv[2]))
    except (MissingLicence, UnknownOrigin) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{len(names)} licences written to {sys.argv[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
