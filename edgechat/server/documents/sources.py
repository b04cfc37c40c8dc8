"""Where the passages of an answer are from, as clients are told it: by names, and no path of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from edgechat.documents.citations import citations_in
from edgechat.documents.library import Given


class SourceBody(msgspec.Struct, frozen=True, kw_only=True):
    """Where a passage is from that the model was given."""

    number: int
    """By which the answer cites it: [1]."""
    docs: str
    """The name of the documents."""
    name: str
    """Of the file."""
    path: str
    """Of the file, from the folder on that belongs to the documents."""
    place: str
    """'lines 3–10', 'page 2'; '' for a whole file."""


class FileCitation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation in an answer, in OpenAI's notation."""

    type: Literal["file_citation"] = "file_citation"
    file_id: str
    filename: str
    index: int
    """Where it is in the text, in characters."""


def sources_of(passages: Sequence[Given]) -> list[SourceBody]:
    """Return where passages are from."""
    return [
        SourceBody(
            number=one.source.number,
            docs=one.source.collection,
            name=filename_of(one),
            path=one.document,
            place=one.source.place,
        )
        for one in passages
    ]


def citations_of(text: str, passages: Sequence[Given]) -> list[FileCitation]:
    """Return what an answer cites of the passages that it was given."""
    by_number = {one.source.number: one for one in passages}
    return [
        FileCitation(file_id=file_id_of(cited), filename=filename_of(cited), index=citation.start)
        for citation in citations_in(text, by_number)
        for cited in (by_number[number] for number in citation.numbers)
    ]


def filename_of(passage: Given) -> str:
    """Return the name of a passage's file."""
    return passage.document.rpartition("/")[2]


def file_id_of(passage: Given) -> str:
    """Return an id of a passage's file, which stays the same and tells nothing."""
    name = f"{passage.source.collection}/{passage.document}"
    return f"file-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"
