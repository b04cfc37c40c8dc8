"""The extension `docs` of requests: the documents in which what helps to answer is looked for."""

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
        description="Extension: names of documents, as /v1/vector_stores lists them. Passages that help to "
        "answer are put before the last message of the user, and `sources` in the answer says where they are "
        "from. Requires `edgechat serve --docs NAME`."
    ),
]


@dataclass(frozen=True, slots=True)
class AskedDocuments:
    """What a request asks of documents."""

    names: tuple[str, ...]
    param: str = "docs"
    """The field that has the names."""
    most: int | None = None
    """Passages; None: as many as there is room for, or all documents whole."""


def asked_documents(sent: str | list[str] | None) -> AskedDocuments | None:
    """Return what the field asks; None for nothing."""
    names = (sent,) if isinstance(sent, str) else tuple(dict.fromkeys(sent or ()))
    return AskedDocuments(names) if names else None


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


ALL = "all"
"""Of `edgechat serve --docs`: whichever documents there are."""
REFRESH_SECONDS = 3.0
"""A request waits so long until what has changed is read; the rest is read in the background."""
QUESTION_LETTERS = 4096
"""Of a question, for which documents are searched."""
_MEDIA_TOKENS = 1000
_LOG = logging.getLogger(__name__)


class DocumentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of some documents."""

    name: str
    files: int
    size: int
    """Bytes of what is known of them."""
    changed: float
    """When that was changed last, in seconds since 1970."""


class RequestDocuments:
    """The documents that clients may use. Belongs to one event loop; close it."""

    def __init__(self, allowed: Collection[str] = (), *, refresh_seconds: float = REFRESH_SECONDS) -> None:
        """allowed: names of documents; ALL: all there are."""
        self._allowed = allowed
        self._refresh_seconds = refresh_seconds
        self._library = DocumentLibrary(embedder_here, reranker_here)
        self._updates = DocumentLibrary()
        """Has a thread of its own: what is being read holds up no search."""
        for library in (self._library, self._updates):
            library.on_note = lambda note: _LOG.warning("%s", note)
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        self._embedding: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Close them; what is being read is read on with the next question."""
        tasks = list(self._refreshing.values())
        tasks += [self._embedding] if self._embedding is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(self._library.close(), self._updates.close())

    async def names(self) -> list[str]:
        """Return the names of all that clients may use. Raises Refusal if they may use none."""
        if not self._allowed:
            raise Refusal(
                "This server does not give access to documents; start it with `edgechat serve --docs NAME`.",
                status=403,
                code="documents_not_served",
            )
        there = await asyncio.to_thread(registry.names)
        return [name for name in there if name in self._allowed or ALL in self._allowed]

    async def check(self, names: Sequence[str], param: str | None = None, *, status: int = 400) -> None:
        """Raise Refusal for documents that clients may not use, or that are not there."""
        known = await self.names()
        for name in names:
            if name not in known:
                listed = f"There are: {', '.join(known[:20])}." if known else "There are none."
                raise Refusal(
                    f"There are no documents {one_line(name, 80)!r} here. {listed}",
                    status=status,
                    param=param,
                    code="documents_not_found",
                )

    async def facts(self, name: str) -> DocumentFacts:
        """Return what there is of documents that clients may use. Raises Refusal."""
        with _refused():
            return await asyncio.to_thread(_facts, name)

    async def usable(self) -> list[DocumentFacts]:
        """Return what there is of all documents that clients may use; what cannot be read is left out.

        Raises Refusal if they may use none.
        """
        found: list[DocumentFacts] = []
        for name in await self.names():
            with suppress(Refusal):  # it is in the log
                found.append(await self.facts(name))
        return found

    async def prepare(self, asked: AskedDocuments) -> None:
        """Bring documents up to date, as far as that takes no longer than a client should wait.

        Raises Refusal for documents that clients may not use, or that are not there.
        """
        await self.check(asked.names, asked.param)
        await asyncio.wait(list(map(self._refresh, asked.names)), timeout=self._refresh_seconds)

    async def find(self, asked: AskedDocuments, served: ServedModel, request: ChatRequest) -> list[Given]:
        """Return what helps to answer a chat, as much as there is room for. Raises Refusal."""
        question = question_in(request, asked.param)
        context = served.model.context or served.plan.context
        room = room_beside(served.plan, context, _tokens_in(request), request.max_tokens)
        if asked.most is not None:
            room = msgspec.structs.replace(room, whole=0)
        with _refused():
            found = await self._library.find(asked.names, question, room)
        return found[: asked.most]

    async def search(self, name: str, query: str, most: int) -> list[Given]:
        """Return the best passages for a query, the best first. Raises Refusal."""
        with _refused():
            return await self._library.best([name], query[:QUESTION_LETTERS], most)

    async def passages(self, names: Sequence[str], query: str, most: int) -> list[Given]:
        """Return the best passages for a query, in all no more than `most` bytes. Raises Refusal."""
        with _refused():
            return await self._library.find(names, query[:QUESTION_LETTERS], Room(passages=most, whole=0))

    def models_busy(self, is_busy: bool) -> None:
        """Embed passages that were searched by words alone, while models have nothing to do."""
        if self._embedding is not None:
            self._embedding.cancel()
        self._embedding = None
        if not is_busy:
            self._embedding = asyncio.create_task(self._library.embed_searched())

    def _refresh(self, name: str) -> asyncio.Task[None]:
        """Return what brings documents up to date; requests share it."""
        if name not in self._refreshing:
            self._refreshing[name] = task = asyncio.create_task(self._refreshed(name))
            task.add_done_callback(lambda _: self._refreshing.pop(name, None))
        return self._refreshing[name]

    async def _refreshed(self, name: str) -> None:
        try:
            await self._updates.refresh([name])
        except DocumentError as error:  # what was read before is found anyway
            _LOG.warning("The documents %s could not be brought up to date. %s", name, error.message)


def _facts(name: str) -> DocumentFacts:
    with closing(registry.open_collection(name)) as collection:
        return DocumentFacts(
            name=name,
            files=collection.counts().files,
            size=collection.path.stat().st_size,
            changed=collection.path.stat().st_mtime,
        )


def question_in(request: ChatRequest, param: str = "docs") -> str:
    """Return for what documents are searched: the last message of the user. Raises Refusal without one."""
    at = _last_question(request.messages)
    if at is None:
        raise Refusal("Documents are searched for a message of the user; there is none.", param=param)
    return request.messages[at].content.replace(MARK, " ")[:QUESTION_LETTERS]


def with_documents(request: ChatRequest, passages: Sequence[Given]) -> ChatRequest:
    """Return a request with passages before the last message of the user, as in chats."""
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
    """Return about how many tokens a chat has: not all engines could count them."""
    texts = [text for message in request.messages for text in (message.content, message.thinking)]
    texts += [call.arguments for message in request.messages for call in message.calls]
    texts += [str(tool) for tool in request.tools]
    media = sum(len(message.media) for message in request.messages)
    return int(sum(len(text.encode()) for text in texts) / BYTES_PER_TOKEN) + _MEDIA_TOKENS * media


@contextmanager
def _refused() -> Iterator[None]:
    """Refuse what documents cannot answer; the reason may name paths, and is for the log."""
    try:
        yield
    except (DocumentError, OSError) as error:
        _LOG.warning("%s", error)
        message = "The documents cannot be read now; the log of the server says why."
        raise Refusal(message, status=503, code="documents_unavailable") from error
