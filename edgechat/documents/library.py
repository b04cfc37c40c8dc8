"""All that a chat asks of collections: bring them up to date, and find what helps to answer a question.

Collections are opened on first use and stay open. Their files are accessed on one thread of its own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from edgechat.documents import registry, retrieval
from edgechat.documents.collection import Collection, Found
from edgechat.documents.indexing import Progress, Update, update
from edgechat.documents.source import PassageSource, place_of

T = TypeVar("T")

FRESH_SECONDS = 10.0
"""A collection that was brought up to date so recently is not looked at again for a question."""
_MOST_RANKED = 24


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A passage, or a whole document, for a model."""

    source: PassageSource
    name: str
    """Of the document, with its place: 'handbook/guide.md, lines 3–10'."""
    text: str


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How much a model can be given with a question, in letters."""

    passages: int
    whole: int
    """If all documents are no longer than this, they are given whole."""


class DocumentLibrary:
    """The collections that a program uses. Belongs to one event loop; close it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="documents")
        self._open: dict[str, Collection] = {}
        self._fresh: dict[str, float] = {}

    async def close(self) -> None:
        """Close all collections, once what is being read is done."""
        await self._call(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        for collection in self._open.values():
            collection.close()
        self._open.clear()

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _collection(self, name: str) -> Collection:
        opened = self._open.get(name)
        if opened is None or not opened.path.exists():
            self._open[name] = opened = registry.open_collection(name)
        return opened

    async def refresh(
        self,
        names: Sequence[str],
        on_progress: Callable[[Progress], None] = lambda _progress: None,
        *,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> list[Update]:
        """Bring collections up to date with the disk, those that were `fresh_seconds` ago left out.

        Cancelling it stops it between two files. on_progress: is called on another thread. Raises
        DocumentError.
        """
        cancelled = threading.Event()

        def work() -> list[Update]:
            updates: list[Update] = []
            for name in names:
                if cancelled.is_set():
                    break
                if time.monotonic() - self._fresh.get(name, -fresh_seconds) >= fresh_seconds:
                    updates.append(update(self._collection(name), on_progress, cancelled.is_set))
                    if not cancelled.is_set():
                        self._fresh[name] = time.monotonic()
            return updates

        try:
            return await self._call(work)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def find(
        self,
        names: Sequence[str],
        question: str,
        room: Room,
        given: Sequence[PassageSource] = (),
        numbered: Sequence[PassageSource] = (),
    ) -> list[Given]:
        """Return what helps to answer a question: all documents whole if there is room, else passages.

        given: what the model is sent anyway, from earlier in the conversation, which is not given again.
        numbered: whose numbers are taken. Raises DocumentError.
        """
        first = 1 + max((source.number for source in (*given, *numbered)), default=0)
        return await self._call(lambda: self._find(names, question, room, given, first))

    async def best(self, name: str, question: str, limit: int) -> list[Given]:
        """Return so many of the best passages of a collection for a question. Raises DocumentError."""

        def work() -> list[Given]:
            collections = [self._collection(name)]
            ranked = retrieval.search(collections, question, limit)
            pieces = [(name, parts, False) for name, parts in retrieval.widened(collections, ranked)]
            return _numbered(pieces, sys.maxsize, (), 1)

        return await self._call(work)

    def _find(
        self, names: Sequence[str], question: str, room: Room, given: Sequence[PassageSource], first: int
    ) -> list[Given]:
        collections = [self._collection(name) for name in dict.fromkeys(names)]
        letters = sum(collection.counts().letters for collection in collections)
        if letters <= room.whole:
            pieces = [
                (collection.name, parts, True)
                for collection in collections
                for file in collection.files()
                if file.letters and (parts := collection.document(file))
            ]
            left = room.whole
        else:
            ranked = retrieval.search(collections, question, _MOST_RANKED)
            pieces = [(name, parts, False) for name, parts in retrieval.widened(collections, ranked)]
            left = room.passages
        return _numbered(pieces, left, given, first)


def _numbered(
    pieces: Sequence[tuple[str, list[Found], bool]], room: int, given: Sequence[PassageSource], first: int
) -> list[Given]:
    """Return as many pieces as there is room for, without those that were given, numbered from `first`."""
    found: list[Given] = []
    known, number = list(given), first
    for collection, parts, is_whole in pieces:
        file, text = parts[0].file, text_of(parts)
        start, end = parts[0].start, parts[-1].end
        source = PassageSource(
            number=number,
            collection=collection,
            path=str(file.location),
            digest=file.digest,
            start=start,
            end=end,
            place="" if is_whole else place_of(file, start, end),
        )
        if len(text) > room or any(one.covers(source) for one in known):
            continue
        room -= len(text)
        number += 1
        known.append(source)
        name = f"{file.name}, {source.place}" if source.place else file.name
        found.append(Given(source=source, name=name, text=text))
    return found


def text_of(parts: Sequence[Found]) -> str:
    """Return the text of passages of one document, with the blank lines between them."""
    text, last = "", 0
    for part in parts:
        gap = part.start - last if last else 0
        text += ("\n" * min(gap, 3) if gap else " " * bool(last)) + part.text
        last = part.end
    return text
