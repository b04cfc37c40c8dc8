"""What a tool is, what a call of it returns, and what offers tools: an MCP server or a part of edgechat."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.base.text import printable

MAX_TOOLS = 128
"""Tools of one server; one with more is refused as a whole, since nobody can consent to them."""
MAX_DESCRIPTION = 4096
"""Characters; what exceeds them is cut."""
MAX_SCHEMA, MAX_SCHEMA_DEPTH = 16_384, 32
"""Characters and nesting of a schema; a tool beyond them is left out."""
MAX_ARGUMENTS = 256 * 1024
"""Characters of a call's arguments."""
MAX_RESULT = 32 * 1024
"""Characters of a result that are kept, unless a call asks for fewer."""
MAX_IMAGES, MAX_IMAGE_BYTES = 4, 8 * 2**20
"""Images of a result, and the bytes of each; others are left out, and the text says so."""
CALL_SECONDS = 120.0
"""For one call."""

_MODEL_NAME_LENGTH = 64  # what OpenAI's API allows, to which templates and clients are made
_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_-]")


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it. All texts are untrusted, but harmless for a terminal (`inert`)."""

    server: str
    """The name of the server: of `mcp.json`, or of a built-in group such as 'files'."""
    name: str
    """What the server calls it; unique for one server."""
    title: str = ""
    """A name for people; often empty."""
    description: str = ""
    """At most MAX_DESCRIPTION characters."""
    schema: str = '{"type":"object","properties":{}}'
    """A JSON schema of the arguments, as text, of at most MAX_SCHEMA characters."""
    read_only: bool | None = None
    """Whether the server says that it changes nothing: a hint to show, never a permission. None: it is
    silent."""
    destructive: bool | None = None
    """Whether the server says that it may delete or overwrite; None: it is silent."""
    built_in: bool = False
    """Whether it is a part of edgechat."""
    harmless: bool = False
    """Whether it is called without a question: only built-in tools that read nothing of the user's."""

    @property
    def model_name(self) -> str:
        """The name by which the model calls it; that of a built-in tool is never one of a server's."""
        name = self.name if self.built_in else f"{self.server}__{self.name}"
        return _NOT_IN_NAMES.sub("_", name)[:_MODEL_NAME_LENGTH]

    @property
    def pin(self) -> str:
        """The hash of name, description and schema that a consent is for (SHA-256, hexadecimal)."""
        schema = json.dumps(json.loads(self.schema), sort_keys=True)
        parts = [self.server, self.name, self.title, self.description, schema]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What became of a call. It is untrusted: it comes from a server, a file or the web."""

    text: str
    """For the model; without control characters. Of a call that failed, it says why."""
    images: tuple[bytes, ...] = ()
    """Files of images, as they came: decode them with `edgechat.base.images` only."""
    failed: bool = False
    """Whether the tool says that it failed, or the call did."""
    error: EdgechatError | None = None
    """Why there is no result of the tool, for the user, with what to do next; None if the tool answered."""
    left_out: int = 0
    """Characters of the text that were cut; `text` says so at its end."""
    seconds: float = 0.0


class ToolServer(Protocol):
    """Offers tools. All methods are called from one event loop; calls may run at the same time."""

    @property
    def name(self) -> str:
        """Its name; see `ToolSpec.server`."""
        ...

    async def tools(self) -> Sequence[ToolSpec]:
        """Return its tools, sorted by name, after starting it if necessary. Raises ToolError."""
        ...

    async def call(self, tool: ToolSpec, arguments: str) -> ToolResult:
        """Call a tool with a JSON object, as text.

        Raises ToolError if it does not answer, or is no longer as `tool` says. Cancelling this tells the
        server that nobody waits any more. The caller limits time and text.
        """
        ...

    async def close(self) -> None:
        """End it; also while a call runs, which then raises ToolError."""
        ...


def inert(text: str) -> str:
    """Return `printable` text without characters that nobody sees but the model reads.

    Instructions can hide in Unicode's tags and other format characters. The joiners stay: scripts and emoji
    need them.
    """
    text = printable(text)
    if text.isascii():
        return text
    return "".join(c for c in text if c in "\u200c\u200d" or unicodedata.category(c) not in ("Cf", "Co"))


def shown_arguments(arguments: str) -> str:
    """Return a call's arguments as they are shown: indented if they are JSON, always whole and inert."""
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    return visible_escapes(arguments)


def visible_escapes(text: str) -> str:
    r"""Return text in which characters that `inert` would drop are written as \uXXXX."""
    return "".join(c if c in "\n\t" or inert(c) == c else f"\\u{ord(c):04x}" for c in text)
