"""The body of POST /v1/responses, and its tools: functions, namespaces of functions, and free-text tools.

The model sees only functions. The server itself runs `file_search` once, before the answer. OpenAI's other
hosted tools (such as web search) are dropped: agents send them to every server, and can do without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.engine.tool_calls.tools import check_choice, check_tools
from edgechat.engine.types import ChatRequest, Tool
from edgechat.server.documents import MOST_DOCUMENTS, AskedDocuments, Docs, DocumentsName, asked_documents
from edgechat.server.protocol.body import Echoed, decode, kind_of, no_effect
from edgechat.server.protocol.fields import (
    FileSearchRanking,
    Labels,
    Lora,
    Model,
    RequestedEffort,
    RequestedPriority,
    SchemaText,
    Seed,
    Tokens,
    allowed_tools,
    answer_schema,
    errors_about,
    limit,
    tool_of,
)
from edgechat.server.protocol.responses_items import (
    JOINT,
    NOTHING,
    CallItem,
    CallOutputItem,
    Earlier,
    MessageItem,
    ReasoningItem,
    ignored_items,
    messages_of,
)
from edgechat.server.refusal import Refusal

ToolName = Annotated[str, Meta(min_length=1, max_length=256)]
_FREE_TEXT = (
    b'{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], '
    b'"additionalProperties": false}'
)
_KINDS = ("function", "custom", "namespace", "file_search")


class FunctionToolParam(msgspec.Struct, frozen=True, kw_only=True):
    """A function; `parameters` is its JSON schema."""

    type: Literal["function"] = "function"
    name: ToolName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    parameters: SchemaText | UnsetType = UNSET
    strict: bool | None = None
    defer_loading: Echoed = None


class CustomToolParam(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that takes free text. A grammar in `format` is described to the model."""

    type: Literal["custom"]
    name: ToolName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    format: dict[str, Any] | None = None
    defer_loading: Echoed = None


class NamespaceParam(msgspec.Struct, frozen=True, kw_only=True):
    """A group of related functions."""

    type: Literal["namespace"]
    name: ToolName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    tools: Annotated[list[FunctionToolParam], Meta(max_length=128)]


class FileSearchParam(msgspec.Struct, frozen=True, kw_only=True):
    """A document search that the server runs before the answer. The query is the user's last message."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[DocumentsName],
        Meta(
            min_length=1,
            max_length=MOST_DOCUMENTS,
            description="Document collections, as listed by /v1/vector_stores.",
        ),
    ]
    max_num_results: Annotated[
        Annotated[int, Meta(ge=1, le=50)] | None,
        Meta(description="The maximum number of passages; by default, as many as fit."),
    ] = None
    filters: Annotated[None, Meta(description="Only null is accepted: files have no attributes.")] = None
    ranking_options: FileSearchRanking | None = None


@dataclass(slots=True)
class Toolbox:
    """The tools in one request, and the names that the client uses for them."""

    tools: tuple[Tool, ...] = ()
    custom: frozenset[str] = frozenset()
    """The names of the free-text tools."""
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The namespace and short name of each function in a namespace, keyed by the name that the model sees."""
    search: AskedDocuments | None = None
    """The documents that `file_search` searches."""

    def name_of(self, called: str) -> tuple[str | None, str]:
        """Return the namespace, if any, and the short name of a function that the model calls."""
        return self.namespaces.get(called, (None, called))


def toolbox_of(sent: Sequence[Raw]) -> Toolbox:
    """Return the tools in the form that the engine expects. Raises Refusal."""
    box = Toolbox()
    found: list[Tool] = []
    custom = set()
    with errors_about("tools"):
        for at, tool in enumerate(sent):
            where = f"tools[{at}]"
            match _kind(tool, at):
                case "function":
                    found.append(_function(decode(tool, FunctionToolParam, where)))
                case "custom":
                    param = decode(tool, CustomToolParam, where)
                    found.append(tool_of(param.name, _described(param), Raw(_FREE_TEXT)))
                    custom.add(param.name)
                case "file_search":
                    search = decode(tool, FileSearchParam, where)
                    names = tuple(dict.fromkeys(search.vector_store_ids))
                    param_path = f"{where}.vector_store_ids"
                    box.search = AskedDocuments(names, param_path, search.max_num_results)
                case "namespace":
                    group = decode(tool, NamespaceParam, where)
                    for one in group.tools:
                        joint = f"{group.name}{JOINT}{one.name}"
                        box.namespaces[joint] = (group.name, one.name)
                        found.append(_function(msgspec.structs.replace(one, name=joint)))
        check_tools(found)
    box.tools, box.custom = tuple(found), frozenset(custom)
    return box


def _kind(tool: Raw, at: int) -> str:
    return kind_of(tool, f"tools[{at}]")


def _function(param: FunctionToolParam) -> Tool:
    return tool_of(param.name, param.description, param.parameters, strict=param.strict)


def _described(param: CustomToolParam) -> str:
    text = param.description or ""
    definition = (param.format or {}).get("definition")
    if isinstance(definition, str):
        syntax = (param.format or {}).get("syntax", "")
        text += f"\n\nThe input follows this {syntax} grammar:\n{definition}"
    return text


_REF = "#/components/schemas/"
ITEMS = (MessageItem, CallItem, CallOutputItem, ReasoningItem)
TOOLS = (FunctionToolParam, CustomToolParam, NamespaceParam, FileSearchParam)


def _one_of(types: tuple[type, ...]) -> dict[str, Any]:
    known = [{"$ref": _REF + one.__name__} for one in types]
    return {"anyOf": [*known, {"type": "object", "required": ["type"]}]}


Item = Annotated[Raw, Meta(description="Items of other types are ignored.", extra_json_schema=_one_of(ITEMS))]
ToolParam = Annotated[
    Raw, Meta(description="Tools of other types are left out.", extra_json_schema=_one_of(TOOLS))
]


class AnyText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Allows any text."""


class AnyObject(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """Allows any JSON object."""


class SchemaFormat(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """Requires JSON that conforms to a schema, with or without `strict`."""

    name: str = ""
    schema: SchemaText | UnsetType = UNSET
    description: str | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the answer."""

    format: AnyText | AnyObject | SchemaFormat | None = None
    verbosity: Annotated[
        str | None, no_effect("Ignored: local models do not have this option.", "medium")
    ] = None


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long to think."""

    effort: RequestedEffort | None = None
    summary: Annotated[str | None, no_effect("Ignored: the thinking itself is sent, as reasoning_text.")] = (
        None
    )
    generate_summary: Annotated[str | None, no_effect("Ignored, like `summary`.")] = None


class NamedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The tool that must be called or, for allowed_tools, the tools that may be called."""

    type: str
    name: ToolName | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Stream options."""

    include_obfuscation: Annotated[bool | None, no_effect("Ignored: no random padding is sent.", False)] = (
        None
    )


class InputBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /v1/responses/input_tokens: everything that the model reads."""

    model: Model = None
    input: Annotated[
        str | Annotated[list[Item], Meta(max_length=8192)] | None,
        Meta(description="A question, or the items of the conversation so far."),
    ] = None
    instructions: Annotated[str | None, Meta(description="The system prompt.")] = None
    tools: Annotated[list[ToolParam], Meta(max_length=512)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="false: the answer ends after its first call.")
    ] = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        Meta(description="auto: the oldest turns that do not fit into the context are left out."),
    ] = None
    previous_response_id: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(
            description="The response that this request continues: its input and output come before this "
            "input, its instructions do not. Requires `edgechat serve --store-responses`."
        ),
    ] = None
    conversation: Annotated[
        Any,
        Meta(description="Only null is accepted: use previous_response_id, or send the whole conversation."),
    ] = None
    prompt: Annotated[None, Meta(description="Only null is accepted: no prompts are stored here.")] = None
    docs: Docs = None

    @property
    def overruled(self) -> tuple[str, ...]:
        """Paths of fields that have no effect: items and tools for hosted services."""
        tools = (f"tools[{at}]" for at, tool in enumerate(self.tools or ()) if _kind(tool, at) not in _KINDS)
        return (*ignored_items(self.input or ""), *tools)

    def engine_request(self, box: Toolbox, earlier: Earlier = NOTHING) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        if self.conversation is not None:
            raise Refusal(
                "Conversations are not stored here: send the whole conversation as input.",
                param="conversation",
                code="not_stored",
            )
        messages = messages_of(self.instructions, self.input or (), earlier)
        if not messages:
            raise Refusal("Send input or instructions.", param="input")
        mode, tools, named = self._choice(box)
        request = ChatRequest(
            id="",
            messages=messages,
            tools=tools,
            tool_choice="required" if named or mode == "required" else "auto",
            tool=named,
            most_calls=1 if self.parallel_tool_calls is False else None,
            schema=self._schema(),
            overflow="window" if self.truncation == "auto" else "error",
        )
        with errors_about("tool_choice"):
            check_choice(request)
        return request

    def documents(self, box: Toolbox) -> AskedDocuments | None:
        """Return the documents that the request names. Raises Refusal."""
        sent = asked_documents(self.docs)
        if sent is not None and box.search is not None:
            raise Refusal("docs and the tool file_search are the same; send one of them.", param="docs")
        return sent or (box.search if self.tool_choice != "none" else None)

    def _choice(self, box: Toolbox) -> tuple[str, tuple[Tool, ...], str | None]:
        """Return whether a call is required, the tools to choose from, and the tool that must be called."""
        match self.tool_choice:
            case "none":
                return "none", (), None
            case NamedChoice(type="allowed_tools", mode=mode, tools=tools):
                named = [tool for tool in tools or () if tool.get("type") != "file_search"]
                names = {str(tool.get("name", "")) for tool in named}
                return self._mode(mode, box), allowed_tools(box.tools, names), None
            case NamedChoice(type="file_search") if box.search is not None:
                return "auto", box.tools, None
            case NamedChoice(name=name) if name is not None:
                return "required", box.tools, name
            case NamedChoice():
                raise Refusal("Only functions and custom tools can be called here.", param="tool_choice")
            case mode:
                return self._mode(mode, box), box.tools, None

    @staticmethod
    def _mode(mode: str | None, box: Toolbox) -> str:
        """Return the mode. If a search is the only tool, no call is required, because the server runs it."""
        return "auto" if mode is None or (box.search is not None and not box.tools) else mode

    def _schema(self) -> str | None:
        match self.text.format if self.text is not None else None:
            case AnyObject():
                return answer_schema(None, "text.format")
            case SchemaFormat(schema=sent):
                return answer_schema(sent, "text.format")
        return None


class ResponseBody(InputBody, frozen=True, kw_only=True):
    """The body of /v1/responses. Fields that only OpenAI's servers can support are ignored or refused."""

    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Annotated[Tokens | None, Meta(description="End after this many tokens.")] = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        Meta(description="Return the logprobs of this many alternatives for each token."),
    ] = None
    include: Annotated[
        Annotated[list[str], Meta(max_length=64)] | None,
        Meta(
            description="message.output_text.logprobs, reasoning.encrypted_content and "
            "file_search_call.results are supported; others belong to hosted tools."
        ),
    ] = None
    seed: Annotated[Seed | None, Meta(description="Extension: the same seed reproduces the same text.")] = (
        None
    )
    priority: RequestedPriority = None
    lora: Lora = None
    background: Annotated[
        Literal[False] | None, Meta(description="Only false is accepted: the client waits for the response.")
    ] = None
    store: Annotated[
        bool | None,
        Meta(description="false: not even `edgechat serve --store-responses` stores this response."),
    ] = None
    metadata: Annotated[Labels | None, Meta(description="Returned with the response.")] = None
    user: Annotated[str | None, no_effect("Ignored: this server has only one user.")] = None
    safety_identifier: Annotated[str | None, no_effect("Ignored, like `user`.")] = None
    prompt_cache_key: Annotated[
        str | None, Meta(description="Ignored: common prefixes of prompts are found automatically.")
    ] = None
    prompt_cache_retention: Annotated[str | None, no_effect("Ignored: prompts are cached in memory.")] = None
    service_tier: Annotated[str | None, no_effect("Ignored: there is only one tier.", "auto", "default")] = (
        None
    )
    max_tool_calls: Annotated[
        int | None, no_effect("Ignored: it limits calls to hosted tools, and there are none.")
    ] = None

    def engine_request(self, box: Toolbox, earlier: Earlier = NOTHING) -> ChatRequest:
        """Return the request to the engine, without the parts that depend on the model. Raises Refusal."""
        wants_logprobs = self.top_logprobs or "message.output_text.logprobs" in (self.include or ())
        return msgspec.structs.replace(
            super().engine_request(box, earlier),
            logprobs=(self.top_logprobs or 0) if wants_logprobs else None,
            max_tokens=limit(self.max_output_tokens, None, "max_output_tokens"),
            priority=self.priority or "interactive",
        )
