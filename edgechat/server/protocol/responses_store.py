"""Responses, as returned to clients, and as stored for `previous_response_id` and `item_reference`."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.base.errors import ResponseNotFound, StoreError
from edgechat.base.text import one_line
from edgechat.chat.storage.responses import CHAIN_BYTES, StoredItem, StoredResponse, too_long
from edgechat.chat.storage.store import ResponseStore
from edgechat.server.documents import FileCitation, SourceBody
from edgechat.server.protocol.answers import PromptDetails, TokenLogprob
from edgechat.server.protocol.body import decode
from edgechat.server.protocol.responses_items import NOTHING, Earlier
from edgechat.server.refusal import Refusal

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[FileCitation] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message from the model."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputThought(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of thinking."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The thinking before an answer or a call."""

    id: str
    status: ItemStatus
    summary: list[Any] = []
    content: list[OutputThought]
    encrypted_content: str | UnsetType = UNSET
    """The thinking, encoded in the form that some clients send back. Only set if requested."""


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A function call. `arguments` is a JSON object as a string."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class OutputCustomCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call to a tool that takes free text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


class FoundText(msgspec.Struct, frozen=True, kw_only=True):
    """A passage found by a search."""

    file_id: str
    filename: str
    score: float
    """1 divided by the rank."""
    text: str
    attributes: dict[str, str] = {}


class OutputSearch(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="file_search_call"):
    """A document search that was run before the answer."""

    id: str
    status: ItemStatus
    queries: list[str]
    results: list[FoundText] | None = None
    """The passages, if the client requested them."""


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall | OutputSearch


class OutputDetails(msgspec.Struct, frozen=True):
    """The number of tokens spent on thinking."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The token counts for a response."""

    input_tokens: int
    input_tokens_details: PromptDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response was cut short."""

    reason: Literal["max_output_tokens"]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response: what the model wrote, and the options from the request."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: Literal[False] = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    reasoning: Any
    service_tier: Literal["default"] = "default"
    store: bool = False
    """Whether the response is stored or, while it is in progress, whether it will be."""
    temperature: float | None = None
    text: Any
    tool_choice: Any
    tools: list[Raw]
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None = None
    truncated: int | UnsetType = UNSET
    """Extension: the number of turns left out, if `truncation` is "auto"."""
    sources: list[SourceBody] | UnsetType = UNSET
    """Extension: the sources of the passages that the model was given."""


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens that the model reads for a given input."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


T = TypeVar("T")
Keep = Callable[[StoredResponse], Awaitable[bool]]
"""Stores a response. Returns False if that fails."""
_LOG = logging.getLogger(__name__)
_OPTION = "`edgechat serve --store-responses` stores them."
_SHOWN = 80
_PREFIXES = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs"}
"""Prefixes of the ids given to items, keyed by the type of item."""


class ResponseQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How to return a stored response."""

    stream: Annotated[
        Literal[False] | None,
        Meta(description="Only false is accepted: the response is returned as a whole."),
    ] = None


class ItemsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which input items to return."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: Annotated[str | None, Meta(description="Only items after the one with this id.")] = None


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request to delete a response."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """The input items of a response."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredResponses:
    """Access to stored responses. Without a store, requests that need one are refused."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store

    def keeper(self, wanted: bool | None) -> Keep | None:
        """Return the function that stores a response, or None if the response should not be stored."""
        return None if self._store is None or wanted is False else self._keep

    async def earlier(self, previous: str | None, references: Mapping[str, str]) -> Earlier:
        """Return the items from earlier responses that a request refers to.

        references: see `references_of`. Raises Refusal, PromptTooLong, and StoreError if the items cannot be
        read.
        """
        if previous is None and not references:
            return NOTHING
        if self._store is None:
            raise Refusal(
                f"Responses are not stored here: send the whole conversation as input. {_OPTION}",
                param=next(iter(references)) if previous is None else "previous_response_id",
                code="not_stored",
            )
        items = [] if previous is None else await self._chain(self._store, previous)
        found = await self._store.referenced(list(references.values()))
        for where, name in references.items():
            if name not in found:
                raise Refusal(
                    f"Item with id '{one_line(name, _SHOWN)}' not found: it is not stored, or is no longer "
                    "stored. Send the whole item.",
                    status=404,
                    param=where,
                )
        # A short request can refer to a long item many times.
        if sum(map(len, items)) + sum(len(found[name]) for name in references.values()) > CHAIN_BYTES:
            raise too_long()
        return Earlier(tuple(map(Raw, items)), {name: Raw(item) for name, item in found.items()})

    async def response(self, response_id: str) -> bytes:
        """Return a stored response. Raises Refusal and StoreError."""
        body, output = await self._of(response_id, ResponseStore.body)
        fields = msgspec.json.decode(body, type=dict[str, Raw])
        fields["output"] = Raw(msgspec.json.encode([Raw(item) for item in output]))
        return msgspec.json.encode(fields)

    async def delete(self, response_id: str) -> DeletedResponse:
        """Delete a stored response. Raises Refusal and StoreError."""
        if not await self._of(response_id, ResponseStore.delete):
            raise _no_response(response_id)
        return DeletedResponse(id=response_id)

    async def input_items(self, response_id: str, query: ItemsQuery) -> InputItems:
        """Return input items from a stored response. Raises Refusal and StoreError."""
        items = await self._of(response_id, ResponseStore.input_items)
        if query.order == "desc":
            items.reverse()
        if query.after is not None:
            places = [at for at, item in enumerate(items) if item.id == query.after]
            if not places:
                raise Refusal("No item in this input has this id.", param="after", code="invalid_value")
            items = items[places[-1] + 1 :]
        data = [_listed(item) for item in items[: query.limit]]
        return InputItems(
            data=data,
            first_id=items[0].id if data else None,
            last_id=items[len(data) - 1].id if data else None,
            has_more=len(items) > len(data),
        )

    async def _keep(self, response: StoredResponse) -> bool:
        """Store a response. Return False if that fails: the client still gets its answer."""
        assert self._store is not None
        try:
            await self._store.keep(response)
        except StoreError as error:
            _LOG.warning("A response could not be stored. %s", error.message)
            return False
        return True

    async def _chain(self, store: ResponseStore, previous: str) -> list[bytes]:
        try:
            return await store.chain(previous)
        except ResponseNotFound as error:
            message = f"Previous response with id '{one_line(previous, _SHOWN)}' not found."
            if error.id != previous:
                message = (
                    f"The beginning of this conversation, the response {error.id!r}, is no longer stored: "
                    "send the whole conversation as input."
                )
            raise Refusal(
                message, param="previous_response_id", code="previous_response_not_found"
            ) from error

    async def _of(self, response_id: str, method: Callable[[ResponseStore, str], Awaitable[T]]) -> T:
        """Call a method of the store with a response's id. Raises Refusal if there is no such response."""
        if self._store is None:
            raise _no_response(response_id, f" Responses are not stored here; {_OPTION}")
        try:
            return await method(self._store, response_id)
        except ResponseNotFound as error:
            raise _no_response(response_id) from error


def record_of(response: Response, created: float, sent: tuple[StoredItem, ...]) -> StoredResponse:
    """Return the record to store for a response.

    created: seconds since 1970. sent: the items in the request's own input.
    """
    return StoredResponse(
        id=response.id,
        previous_id=response.previous_response_id,
        model=response.model,
        created_at=created,
        body=msgspec.json.encode(msgspec.structs.replace(response, output=[])),
        input=sent,
        output=tuple(StoredItem(item.id, msgspec.json.encode(item)) for item in response.output),
    )


def stored_items(sent: Sequence[Raw]) -> tuple[StoredItem, ...]:
    """Return input items in their stored form. Items without an id are given one."""
    used: set[str] = set()
    return tuple(_with_id(item, used) for item in sent)


class _SentItem(msgspec.Struct, frozen=True):
    type: str = "message"
    id: Any = None
    role: Any = None


def _with_id(item: Raw, used: set[str]) -> StoredItem:
    """Return an item with an id that is not in `used`.

    Ids must be unique because each page starts after the item with a given id.
    """
    sent = msgspec.json.decode(item, type=_SentItem)
    if isinstance(sent.id, str) and sent.id and sent.id not in used:
        used.add(sent.id)
        return StoredItem(sent.id, bytes(item))
    name = f"{_PREFIXES.get(sent.type, 'item')}_{secrets.token_hex(16)}"
    fields = decode(item, dict[str, Raw]) | {"id": Raw(msgspec.json.encode(name))}
    return StoredItem(name, msgspec.json.encode(fields))


def _listed(stored: StoredItem) -> dict[str, Any]:
    """Return an item as clients expect it: with a type, and with parts instead of a plain string."""
    sent = msgspec.json.decode(stored.item, type=_SentItem)
    fields: dict[str, Any] = msgspec.json.decode(stored.item, type=dict[str, Raw])
    fields["type"] = sent.type
    if sent.type == "message":
        fields.setdefault("status", "completed")
        if bytes(fields["content"]).startswith(b'"'):
            text = {"text": fields["content"]}
            own = {"type": "output_text", **text, "annotations": []}
            fields["content"] = [own if sent.role == "assistant" else {"type": "input_text", **text}]
    return fields


def _no_response(response_id: str, why: str = "") -> Refusal:
    message = f"Response with id '{one_line(response_id, _SHOWN)}' not found.{why}"
    return Refusal(message, status=404, code="not_stored" if why else None)
