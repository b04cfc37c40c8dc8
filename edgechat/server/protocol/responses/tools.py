"""The tools of a response: functions, groups of functions, and tools that take free text.

To the model all of them are functions. `file_search` is carried out here, once, before the answer. Other
tools that OpenAI's own servers run (web search, ...) are left out: agents send them wherever they are
configured, and do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from edgechat.engine.tool_calls.tools import check_tools
from edgechat.engine.types import Tool
from edgechat.server.documents import MOST_DOCUMENTS, AskedDocuments, DocumentsName
from edgechat.server.protocol.decoding import decode, kind_of
from edgechat.server.protocol.responses.items import JOINT
from edgechat.server.protocol.schemas import SchemaText, errors_about, tool_of
from edgechat.server.protocol.strictness import Echoed, no_effect
from edgechat.server.refusal import Refusal

ToolName = Annotated[str, Meta(min_length=1, max_length=256)]
_FREE_TEXT = (
    b'{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"], '
    b'"additionalProperties": false}'
)
_SEARCH = "file_search"
_KINDS = ("function", "custom", "namespace", _SEARCH)


class FunctionToolParam(msgspec.Struct, frozen=True, kw_only=True):
    """A function; `parameters` is a JSON schema."""

    type: Literal["function"] = "function"
    name: ToolName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    parameters: SchemaText | UnsetType = UNSET
    strict: bool | None = None
    defer_loading: Echoed = None


class CustomToolParam(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that takes free text; a grammar in `format` is described to the model."""

    type: Literal["custom"]
    name: ToolName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    format: dict[str, Any] | None = None
    defer_loading: Echoed = None


class NamespaceParam(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that belong together."""

    type: Literal["namespace"]
    name: ToolName
    description: Annotated[str, Meta(max_length=65536)] | None = None
    tools: Annotated[list[FunctionToolParam], Meta(max_length=128)]


class FileSearchRanking(msgspec.Struct, frozen=True, kw_only=True):
    """How passages are ranked."""

    ranker: Annotated[str | None, no_effect("Ignored: there is one way to rank.", "auto")] = None
    score_threshold: Annotated[
        Literal[0] | Annotated[float, Meta(ge=0, le=0)] | None,
        Meta(description="Only 0: scores are ranks, which say nothing without the others."),
    ] = None
    hybrid_search: Annotated[dict[str, Any] | None, no_effect("Ignored: ranks are joined evenly.")] = None


class FileSearchParam(msgspec.Struct, frozen=True, kw_only=True):
    """A search in documents for the last message of the user, before the answer."""

    type: Literal["file_search"]
    vector_store_ids: Annotated[
        list[DocumentsName],
        Meta(
            min_length=1, max_length=MOST_DOCUMENTS, description="Documents, as /v1/vector_stores lists them."
        ),
    ]
    max_num_results: Annotated[
        Annotated[int, Meta(ge=1, le=50)] | None,
        Meta(description="The most passages; without it: as many as there is room for."),
    ] = None
    filters: Annotated[None, Meta(description="Only null is accepted: files have no attributes.")] = None
    ranking_options: FileSearchRanking | None = None


@dataclass(slots=True)
class Toolbox:
    """The tools of one request, and what the client calls them."""

    tools: tuple[Tool, ...] = ()
    custom: frozenset[str] = frozenset()
    """The names of those that take free text."""
    namespaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of each function of a namespace: the namespace, and the name in it."""
    search: AskedDocuments | None = None
    """What is looked for in documents."""

    def name_of(self, called: str) -> tuple[str | None, str]:
        """Return the namespace of a function that the model has called, if any, and its name."""
        return self.namespaces.get(called, (None, called))

    def only(self, names: set[str]) -> tuple[Tool, ...]:
        """Return the tools of these names. Raises Refusal if there is no such tool."""
        if unknown := names - {tool.name for tool in self.tools}:
            raise Refusal(f"{min(unknown)!r} is allowed, but is not one of the tools.", param="tool_choice")
        return tuple(tool for tool in self.tools if tool.name in names)


def toolbox_of(sent: Sequence[Raw]) -> Toolbox:
    """Return the tools as the engine takes them. Raises Refusal."""
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


def ignored_tools(sent: Sequence[Raw]) -> list[str]:
    """Return the paths of tools that only OpenAI's servers can run."""
    return [f"tools[{at}]" for at, tool in enumerate(sent) if _kind(tool, at) not in _KINDS]


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
