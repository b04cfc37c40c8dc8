"""Documents in requests: which ones clients may use, passages from them for the model, and citations.

Clients refer to documents by name. Sources never reveal where the documents are stored on this machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgechat.base.errors import DocumentError
from edgechat.base.text import one_line
from edgechat.chat.attachments import BYTES_PER_TOKEN, attached_passage, room_beside
from edgechat.chat.messages import with_passages
from edgechat.documents import registry
from edgechat.documents.citations import citations_in
from edgechat.documents.embedding import embedder_here
from edgechat.documents.library import DocumentLibrary, Given, Room
from edgechat.documents.retrieval import reranker_here
from edgechat.engine.types import ChatRequest, Message
from edgechat.server.media import MARK
from edgechat.server.pool.models import ServedModel
from edgechat.server.refusal import Refusal

MOST_DOCUMENTS = 16
DocumentsName = Annotated[str, Meta(min_length=1, max_length=64)]
Docs = Annotated[
    DocumentsName | Annotated[list[DocumentsName], Meta(max_length=MOST_DOCUMENTS)] | None,
    Meta(
        description="Extension: names of document collections, as listed by /v1/vector_stores. Relevant "
        "passages are inserted before the user's last message; `sources` in the answer lists where they come "
        "from. Requires `edgechat serve --docs NAME`."
    ),
]


@dataclass(frozen=True, slots=True)
class AskedDocuments:
    """The documents named in a request."""

    names: tuple[str, ...]
    param: str = "docs"
    """The request field that contains the names."""
    most: int | None = None
    """Maximum number of passages. None means as many as fit, or whole documents."""


def asked_documents(sent: str | list[str] | None) -> AskedDocuments | None:
    """Return the documents named in a `docs` field, or None if there are none."""
    names = (sent,) if isinstance(sent, str) else tuple(dict.fromkeys(sent or ()))
    return AskedDocuments(names) if names else None


class SourceBody(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a passage that the model was given."""

    number: int
    """The number used in citations: 1 for [1]."""
    docs: str
    """The name of the document collection."""
    name: str
    """The name of the file."""
    path: str
    """The path of the file, relative to the folder of the collection."""
    place: str
    """The place in the file, such as 'lines 3–10' or 'page 2', or '' for a whole file."""


class FileCitation(msgspec.Struct, frozen=True, kw_only=True):
    """A citation in an answer, in OpenAI's format."""

    type: Literal["file_citation"] = "file_citation"
    file_id: str
    filename: str
    index: int
    """The position of the citation in the text, in characters."""


class FileCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of files that contain text."""

    total: int
    completed: int
    in_progress: int = 0
    failed: int = 0
    cancelled: int = 0


class VectorStoreBody(msgspec.Struct, frozen=True, kw_only=True):
    """Documents on this machine. `created_at` is the time when their index last changed."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    name: str
    created_at: int
    last_active_at: int
    status: Literal["completed"] = "completed"
    usage_bytes: int
    file_counts: FileCounts
    metadata: dict[str, str] = {}
    expires_after: None = None
    expires_at: None = None


def sources_of(passages: Sequence[Given]) -> list[SourceBody]:
    """Return the sources of passages."""
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
    """Return the citations in an answer that refer to the given passages."""
    by_number = {one.source.number: one for one in passages}
    return [
        FileCitation(file_id=file_id_of(cited), filename=filename_of(cited), index=citation.start)
        for citation in citations_in(text, by_number)
        for cited in (by_number[number] for number in citation.numbers)
    ]


def filename_of(passage: Given) -> str:
    """Return the name of the file that a passage comes from."""
    return passage.document.rpartition("/")[2]


def file_id_of(passage: Given) -> str:
    """Return a stable, opaque id for the file that a passage comes from."""
    name = f"{passage.source.collection}/{passage.document}"
    return f"file-{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


ALL = "all"
"""Value of `edgechat serve --docs` that allows all documents."""
REFRESH_SECONDS = 3.0
"""How many seconds a request waits for changed files to be read. The rest are read in the background."""
QUESTION_LETTERS = 4096
"""How many characters of a question are used for the search."""
_MEDIA_TOKENS = 1000
_LOG = logging.getLogger(__name__)


class RequestDocuments:
    """The documents that clients may use, searched within limits and without blocking the event loop.

    Close it after use.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        """allowed: collection names, or ALL; if empty, clients may not use any."""
        self._allowed = allowed
        self._library = DocumentLibrary(embedder_here, reranker_here)
        self._updates = DocumentLibrary()
        """A second library with a thread of its own, so that reading files does not delay searches."""
        for library in (self._library, self._updates):
            library.on_note = lambda note: _LOG.warning("%s", note)
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._embedding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close the document libraries. Changed files not read yet are read on the next query."""
        tasks = list(self._refreshing.values())
        tasks += [self._embedding] if self._embedding is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(self._library.close(), self._updates.close())

    async def names(self) -> list[str]:
        """Return the names of the documents that clients may use. Raises Refusal if they may not use any."""
        if not self._allowed:
            raise Refusal(
                "This server does not give access to documents; start it with `edgechat serve --docs NAME`.",
                status=403,
                code="documents_not_served",
            )
        there = await asyncio.to_thread(registry.names)
        return [name for name in there if name in self._allowed or ALL in self._allowed]

    async def check(self, names: Sequence[str], param: str | None = None, *, status: int = 400) -> None:
        """Raise Refusal if documents are missing or not allowed."""
        known = await self.names()
        for name in names:
            if name not in known:
                listed = f"Available: {', '.join(known[:20])}." if known else "There are none."
                raise Refusal(
                    f"There is no document collection named {one_line(name, 80)!r}. {listed}",
                    status=status,
                    param=param,
                    code="documents_not_found",
                )

    async def vector_store(self, name: str) -> VectorStoreBody:
        """Return a collection as a vector store. Raises Refusal."""
        with _refused():
            return await asyncio.to_thread(_vector_store, name)

    async def usable(self) -> list[VectorStoreBody]:
        """Return every allowed collection that can be read. Raises Refusal if clients may not use any."""
        found: list[VectorStoreBody] = []
        for name in await self.names():
            with suppress(Refusal):  # the log says why
                found.append(await self.vector_store(name))
        return found

    async def prepare(self, asked: AskedDocuments) -> None:
        """Bring documents up to date, as far as possible within the time limit.

        Raises Refusal if documents are missing or not allowed.
        """
        await self.check(asked.names, asked.param)
        await asyncio.wait(list(map(self._refresh, asked.names)), timeout=REFRESH_SECONDS)

    async def find(self, asked: AskedDocuments, served: ServedModel, request: ChatRequest) -> list[Given]:
        """Return passages that help answer a chat, as many as fit in the context. Raises Refusal."""
        question = question_in(request, asked.param)
        context = served.model.context or served.plan.context
        room = room_beside(served.plan, context, _tokens_in(request), request.max_tokens)
        if asked.most is not None:
            room = msgspec.structs.replace(room, whole=0)
        with _refused():
            found = await self._library.find(asked.names, question, room)
        return found[: asked.most]

    async def search(self, name: str, query: str, most: int) -> list[Given]:
        """Return the best passages for a query, best first. Raises Refusal."""
        with _refused():
            return await self._library.best([name], query[:QUESTION_LETTERS], most)

    async def passages(self, names: Sequence[str], query: str, most: int) -> list[Given]:
        """Return the best passages for a query, with a total of at most `most` bytes. Raises Refusal."""
        with _refused():
            return await self._library.find(names, query[:QUESTION_LETTERS], Room(passages=most, whole=0))

    def models_busy(self, is_busy: bool) -> None:
        """Start or stop embedding passages without a vector, which is done only while models are idle."""
        if self._embedding is not None:
            self._embedding.cancel()
        self._embedding = None
        if not is_busy:
            self._embedding = asyncio.create_task(self._library.embed_searched())

    def _refresh(self, name: str) -> asyncio.Task[None]:
        """Return the task that brings a collection up to date; all requests share it."""
        if name not in self._refreshing:
            self._refreshing[name] = task = asyncio.create_task(self._refreshed(name))
            task.add_done_callback(lambda _: self._refreshing.pop(name, None))
        return self._refreshing[name]

    async def _refreshed(self, name: str) -> None:
        try:
            await self._updates.refresh([name])
        except DocumentError as error:  # searches use the old index
            _LOG.warning("The documents %s could not be brought up to date. %s", name, error.message)


def _vector_store(name: str) -> VectorStoreBody:
    with closing(registry.open_collection(name)) as collection:
        files, index = collection.counts().files, collection.path.stat()
    changed = int(index.st_mtime)
    return VectorStoreBody(
        id=name,
        name=name,
        created_at=changed,
        last_active_at=changed,
        usage_bytes=index.st_size,
        file_counts=FileCounts(total=files, completed=files),
    )


def question_in(request: ChatRequest, param: str = "docs") -> str:
    """Return the question to search for: the user's last message. Raises Refusal if there is none."""
    at = _last_question(request.messages)
    if at is None:
        raise Refusal("Searching documents requires a user message, but there is none.", param=param)
    return request.messages[at].content.replace(MARK, " ")[:QUESTION_LETTERS]


def with_documents(request: ChatRequest, passages: Sequence[Given]) -> ChatRequest:
    """Return a request with passages inserted before the user's last message, as the app does in chats."""
    at = _last_question(request.messages)
    if at is None or not passages:
        return request
    messages = list(request.messages)
    text = with_passages(messages[at].content, list(map(attached_passage, passages)))
    messages[at] = msgspec.structs.replace(messages[at], content=text)
    return msgspec.structs.replace(request, messages=tuple(messages))


def _last_question(messages: Sequence[Message]) -> int | None:
    return next((at for at in reversed(range(len(messages))) if messages[at].role == "user"), None)


def _tokens_in(request: ChatRequest) -> int:
    """Estimate the number of tokens in a chat, since not all engines can count them."""
    texts = [text for message in request.messages for text in (message.content, message.thinking)]
    texts += [call.arguments for message in request.messages for call in message.calls]
    texts += [str(tool) for tool in request.tools]
    media = sum(len(message.media) for message in request.messages)
    return int(sum(len(text.encode()) for text in texts) / BYTES_PER_TOKEN) + _MEDIA_TOKENS * media


@contextmanager
def _refused() -> Iterator[None]:
    """Turn document errors into a Refusal. Details are only logged, because they may contain paths."""
    try:
        yield
    except (DocumentError, OSError) as error:
        _LOG.warning("%s", error)
        message = "The documents cannot be read at the moment; see the server's log."
        raise Refusal(message, status=503, code="documents_unavailable") from error
