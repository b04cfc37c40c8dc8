"""A response, as it is returned and as the events of a stream tell of it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from edgechat.documents.library import Given
from edgechat.server.documents import FileCitation, SourceBody, file_id_of, filename_of
from edgechat.server.protocol.openai.logprobs import TokenLogprob
from edgechat.server.protocol.openai.usage import PromptDetails

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[FileCitation] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class OutputThought(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The thinking before an answer or a call."""

    id: str
    status: ItemStatus
    summary: list[Any] = []
    content: list[OutputThought]
    encrypted_content: str | UnsetType = UNSET
    """The thinking once more, for clients that send nothing else back; if included."""


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function. `arguments` is a JSON object, as text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class OutputCustomCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes free text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


class FoundText(msgspec.Struct, frozen=True, kw_only=True):
    """A passage that a search has found."""

    file_id: str
    filename: str
    score: float
    """One divided by its rank."""
    text: str
    attributes: dict[str, str] = {}

    @classmethod
    def of(cls, rank: int, passage: Given) -> FoundText:
        """Return a passage of some rank, from 1."""
        return cls(
            file_id=file_id_of(passage), filename=filename_of(passage), score=1 / rank, text=passage.text
        )


class OutputSearch(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="file_search_call"):
    """A search in documents, which was carried out before the answer."""

    id: str
    status: ItemStatus
    queries: list[str]
    results: list[FoundText] | None = None
    """If included."""


OutputItem = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall | OutputSearch


class OutputDetails(msgspec.Struct, frozen=True):
    """Tokens of the thinking."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: PromptDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    """Why there is no response, or not all of it."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is cut short."""

    reason: Literal["max_output_tokens"]


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response: what the model has written, and what it was asked for."""

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
    """Whether it is stored; of one that is in progress, whether it is going to be."""
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
    """Extension: the number of turns left out, if truncation is auto."""
    sources: list[SourceBody] | UnsetType = UNSET
    """Extension: where the passages of documents are from that the model was given."""


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tokens that an input has for the model."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
