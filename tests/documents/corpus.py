"""The corpus and its questions, and collections made from texts without reading files."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from edgechat.documents.collection import Collection, File, Found
from edgechat.documents.passages import passages_of

HERE = Path(__file__).parent
ROOT = "/corpus"


class Question(msgspec.Struct, frozen=True):
    """A question, and the lines in the document that answer it."""

    question: str
    language: str
    document: str
    first_line: int
    last_line: int
    phrase: str

    def is_answered_by(self, passages: Sequence[Found]) -> bool:
        """Return True if one of the passages contains a line of the answer."""
        return any(
            one.file.path == self.document and one.start <= self.last_line and one.end >= self.first_line
            for one in passages
        )


def questions() -> list[Question]:
    """Return the 100 questions."""
    lines = (HERE / "questions.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Question) for line in lines]


def documents() -> Iterator[tuple[str, str]]:
    """Yield the path and text of the 200 documents."""
    with tarfile.open(HERE / "corpus.tar.xz") as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield member.name.removeprefix("corpus/"), file.read().decode()


def put(collection: Collection, path: str, text: str, root: str = ROOT) -> None:
    """Put a text into a collection as one of its files."""
    collection.add_root(root)
    digest = hashlib.sha256(text.encode()).hexdigest()
    file = File(root=root, path=path, size=len(text), changed=0, digest=digest, n_bytes=len(text.encode()))
    is_code = PurePosixPath(path).suffix not in (".md", ".txt")
    collection.put(file, passages_of(text, is_code=is_code))


def whole(path: Path) -> Collection:
    """Return a new collection of all documents."""
    collection = Collection(path, "corpus")
    for name, text in documents():
        put(collection, name, text)
    return collection
