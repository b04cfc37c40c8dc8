"""Document library: updates collections, embeds their passages, and finds those that help answer a question.

Collections are opened on first use and stay open. Their files are accessed on a dedicated thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from edgechat.base.errors import DocumentsUnwritable, EdgechatError
from edgechat.documents import registry, retrieval
from edgechat.documents.citations import PassageSource, place_of
from edgechat.documents.collection import Collection, Found, Root
from edgechat.documents.embedding import VectorIndex, packed
from edgechat.documents.indexing import Progress, Update, update
from edgechat.documents.retrieval import RERANKED, Ranked

if TYPE_CHECKING:
    from edgechat.documents.embedding import Embedder, SearchModel
    from edgechat.documents.retrieval import Reranker

T = TypeVar("T")
M = TypeVar("M", bound="SearchModel")

FRESH_SECONDS = 10.0
"""A collection updated within this many seconds is not checked again before answering a question."""
_MOST_RANKED = 24
_BATCH = 16
"""Number of passages to embed between writes, and the most that an interruption can lose."""

Piece = tuple[str, list[Found], bool]
"""The name of a collection, some passages from a document, and whether they make up the whole document."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A passage or a whole document given to a model."""

    source: PassageSource
    document: str
    """Name of the document, as shown to the user; see `File.name`."""
    text: str

    @property
    def name(self) -> str:
        """The document's name and the place in it: 'handbook/guide.md, lines 3–10'."""
        return f"{self.document}, {self.source.place}" if self.source.place else self.document


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How much text fits alongside a question, in bytes of UTF-8."""

    passages: int
    whole: int
    """Maximum total size of documents that are included in full."""


class DocumentLibrary:
    """The collections that a program uses. Belongs to one event loop, and must be closed."""

    def __init__(
        self,
        make_embedder: Callable[[], Embedder | None] = lambda: None,
        make_reranker: Callable[[], Reranker | None] = lambda: None,
    ) -> None:
        """Each function is called once, on another thread. Without an embedder, only keywords are used."""
        self._make_embedder, self._make_reranker = make_embedder, make_reranker
        self._reranker: asyncio.Future[Reranker | None] | None = None
        self._embedder: asyncio.Future[Embedder | None] | None = None
        self._matrices: dict[str, tuple[int, VectorIndex]] = {}
        self.on_note: Callable[[str], None] = lambda _note: None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="documents")
        self._open: dict[str, Collection] = {}
        self._fresh: dict[str, float] = {}
        self._away: dict[str, list[Root]] = {}
        """The roots already reported as unavailable, keyed by collection."""
        self._searched: set[str] = set()
        """Names of collections that have been searched to answer a question."""

    async def close(self) -> None:
        """Close all collections once any running update has finished, and stop the search models."""
        if self._embedder is not None:
            await _ended(self._embedder)
        if self._reranker is not None:
            await _ended(self._reranker)
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
        if opened is not None and not opened.is_there:  # removed, and perhaps created again
            opened.close()
            opened = None
            self._matrices.pop(name, None)
            self._fresh.pop(name, None)
        if opened is None:
            self._open[name] = opened = registry.open_collection(name)
        return opened

    async def refresh(
        self,
        names: Sequence[str],
        on_progress: Callable[[Progress], None] = lambda _progress: None,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        must_write: bool = False,
    ) -> list[Update]:
        """Update collections from disk, except those updated less than `fresh_seconds` ago.

        Cancelling stops the update between two files. on_progress: called on another thread. Raises
        DocumentError; a full or read-only disk, however, only causes a note unless `must_write` is set.
        """
        cancelled = threading.Event()
        unwritable: list[DocumentsUnwritable] = []

        def work() -> dict[str, Update]:
            updates: dict[str, Update] = {}
            for name in names:
                if cancelled.is_set():
                    break
                collection = self._collection(name)  # must come first: a reopened collection is not fresh
                if time.monotonic() - self._fresh.get(name, -fresh_seconds) >= fresh_seconds:
                    try:
                        updates[name] = update(collection, on_progress, cancelled.is_set)
                    except DocumentsUnwritable as error:
                        if must_write:
                            raise
                        unwritable.append(error)
                    if not cancelled.is_set():
                        self._fresh[name] = time.monotonic()
            return updates

        try:
            updates = await self._call(work)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        for error in unwritable:
            self.on_note(f"{error.message} The last version is searched.")
        for name, told in updates.items():
            known, self._away[name] = self._away.get(name, []), told.away
            for root in told.away:
                if root not in known:
                    self.on_note(root.away)
        return list(updates.values())

    async def embedder(self) -> Embedder | None:
        """Return the embedding model without loading it, or None if there is none. Raises EdgechatError."""
        if self._embedder is None:
            self._embedder = asyncio.ensure_future(asyncio.to_thread(self._make_embedder))
        return await asyncio.shield(self._embedder)

    async def embed(
        self,
        names: Sequence[str],
        on_progress: Callable[[Progress], None] = lambda _progress: None,
        *,
        most: int = sys.maxsize,
    ) -> int:
        """Compute missing vectors for at most `most` passages; return how many were computed.

        Does nothing without an embedding model. If it is cancelled, finished vectors are kept. on_progress:
        counts the passages separately for each collection. Raises EdgechatError.
        """
        embedder, done = await self.embedder(), 0
        if embedder is None:
            return 0
        for name in names:
            collection = await self._call(partial(self._collection, name))
            total = await self._call(partial(collection.count_without_vector, embedder.name))
            before, after = done, 0
            while done < most:
                work = partial(collection.without_vector, embedder.name, min(_BATCH, most - done), after)
                if not (batch := await self._call(work)):
                    if not after:
                        break
                    after = 0  # start again: passages may have been added in the meantime
                    continue
                after = batch[-1][0]
                vectors = packed(await embedder.passages([text for _, text in batch]))
                size = len(vectors) // len(batch)
                rows = [(one, vectors[at * size : (at + 1) * size]) for at, (one, _) in enumerate(batch)]
                await self._call(partial(collection.put_vectors, embedder.name, rows))
                done += len(batch)
                on_progress(Progress(done=done - before, total=total, name=name))
        return done

    async def embed_searched(self, on_progress: Callable[[Progress], None] = lambda _progress: None) -> None:
        """Embed every passage in the searched collections; on failure, fall back to keyword search."""
        if names := [name for name in registry.names() if name in self._searched]:
            try:
                await self.embed(names, on_progress)
            except EdgechatError as error:
                await self._do_without_meaning(error)

    async def _nearest(self, names: Sequence[str], question: str, embed: int) -> list[list[int]]:
        """Return, for each collection, the ids of the passages closest in meaning; [] if there is no model.

        embed: see `find`.
        """
        try:
            if embed:
                with suppress(DocumentsUnwritable):
                    await self.embed(names, most=embed)
            if (embedder := await self.embedder()) is None:
                return []
            indexes = [await self._call(partial(self._matrix, name, embedder.name)) for name in names]
            if not any(len(index) for index in indexes):
                return []
            query = await embedder.query(question)
            nearest = [partial(index.nearest, query, retrieval.CANDIDATES) for index in indexes]
            return [await self._call(search) for search in nearest]
        except EdgechatError as error:
            await self._do_without_meaning(error)
            return []

    async def _do_without_meaning(self, error: EdgechatError) -> None:
        """Stop using the embedding model, which may not fit alongside the chat model; use keyword search."""
        if self._embedder is not None:
            self._embedder = await _ended(self._embedder)
        self.on_note(f"Documents are searched by words alone. {error.message}")

    def _matrix(self, name: str, model: str) -> VectorIndex:
        collection = self._collection(name)
        change = collection.change()
        known = self._matrices.get(name)
        if known is None or known[0] != change:
            known = self._matrices[name] = change, VectorIndex(*collection.vectors(model))
        return known[1]

    async def find(
        self,
        names: Sequence[str],
        question: str,
        room: Room,
        given: Sequence[PassageSource] = (),
        numbered: Sequence[PassageSource] = (),
        *,
        embed: int = 0,
    ) -> list[Given]:
        """Return text that helps answer a question: whole documents if there is room, otherwise passages.

        given: passages already in the conversation, which are not repeated. numbered: other passages whose
        numbers are already taken. embed: maximum number of missing vectors to compute before the search.
        Raises DocumentError.
        """
        names = list(dict.fromkeys(names))
        first = 1 + max((source.number for source in (*given, *numbered)), default=0)
        whole = await self._call(lambda: self._whole(names, room.whole))
        if whole is not None:
            return _numbered(whole, room.whole, given, first)
        self._searched |= set(names)
        pieces = await self._passages(names, question, _MOST_RANKED, embed)
        return _numbered(pieces, room.passages, given, first)

    async def best(self, names: Sequence[str], question: str, limit: int) -> list[Given]:
        """Return the best passages for a question, at most `limit` of them. Raises DocumentError."""
        return _numbered(await self._passages(names, question, limit), sys.maxsize, (), 1)

    async def _passages(self, names: Sequence[str], question: str, limit: int, embed: int = 0) -> list[Piece]:
        nearest = await self._nearest(names, question, embed)

        def joined() -> list[Ranked]:
            collections = [self._collection(name) for name in names]
            return retrieval.search(collections, question, max(limit, RERANKED), nearest=nearest)

        ranked = await self._reranked(question, await self._call(joined))

        def widened() -> list[Piece]:
            collections = [self._collection(name) for name in names]
            return [(name, parts, False) for name, parts in retrieval.widened(collections, ranked[:limit])]

        return await self._call(widened)

    async def _reranked(self, question: str, ranked: list[Ranked]) -> list[Ranked]:
        """Return the passages with the first few reordered by the reranking model, if there is one."""
        if self._reranker is None:
            self._reranker = asyncio.ensure_future(asyncio.to_thread(self._make_reranker))
        try:
            reranker = await asyncio.shield(self._reranker)
            if reranker is None or len(ranked) < 2:
                return ranked
            texts = [retrieval.text_of(one.found) for one in ranked[:RERANKED]]
            scores = await reranker.scores(question, texts)
        except EdgechatError as error:  # it may not fit alongside the chat model
            self._reranker = await _ended(self._reranker)
            self.on_note(f"Documents are searched without the reranking model. {error.message}")
            return ranked
        order = sorted(range(len(scores)), key=lambda at: -scores[at])
        return [*(ranked[at] for at in order), *ranked[len(scores) :]]

    def _whole(self, names: Sequence[str], room: int) -> list[Piece] | None:
        """Return all documents in full, or None if they exceed `room` bytes in total."""
        collections = [self._collection(name) for name in names]
        if sum(collection.counts().n_bytes for collection in collections) > room:
            return None
        return [
            (collection.name, parts, True)
            for collection in collections
            for file in collection.files()
            if file.n_bytes and (parts := collection.document(file))
        ]


async def _ended(made: asyncio.Future[M | None]) -> asyncio.Future[M | None]:
    """Close a model, if it was created; return a future that resolves to None, to replace the model's own."""
    with suppress(EdgechatError):  # its caller has already received the error
        if (model := await made) is not None:
            await model.close()
    nothing: asyncio.Future[M | None] = asyncio.get_running_loop().create_future()
    nothing.set_result(None)
    return nothing


def _numbered(pieces: Sequence[Piece], room: int, given: Sequence[PassageSource], first: int) -> list[Given]:
    """Return the pieces that fit into `room`, numbered from `first`, skipping those already given."""
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
            place="" if is_whole else place_of(file, start, end, parts[0].heading),
        )
        if (size := len(text.encode())) > room or any(one.covers(source) for one in known):
            continue
        room -= size
        number += 1
        known.append(source)
        found.append(Given(source=source, document=file.name, text=text))
    return found


def text_of(parts: Sequence[Found]) -> str:
    """Return the text of passages from one document, including the blank lines between them."""
    text, last = "", 0
    for part in parts:
        gap = part.start - last if last else 0
        text += ("\n" * min(gap, 3) if gap else " " * bool(last)) + part.text
        last = part.end
    return text
