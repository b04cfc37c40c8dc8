"""Tools, the results of calls, and the protocol for tool servers: MCP servers and built-in groups."""

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
"""Maximum number of tools per server; servers with more are rejected, since nobody can review that many."""
MAX_DESCRIPTION = 4096
"""Maximum number of characters in a description; longer ones are cut."""
MAX_SCHEMA, MAX_SCHEMA_DEPTH = 16_384, 32
"""Maximum length of a schema in characters, and maximum nesting depth; tools exceeding these are left out."""
MAX_ARGUMENTS = 256 * 1024
"""Maximum number of characters in a call's arguments."""
MAX_RESULT = 32 * 1024
"""Maximum number of characters in a result, unless a call asks for fewer."""
MAX_IMAGES, MAX_IMAGE_BYTES = 4, 8 * 2**20
"""Maximum number of images in a result, and of bytes in each; the rest are left out, and the text says so."""
CALL_SECONDS = 120.0

_MODEL_NAME_LENGTH = 64  # the limit in OpenAI's API, for which templates and clients are designed
_NOT_IN_NAMES = re.compile("[^A-Za-z0-9_-]")


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it. All text is untrusted but `inert`: safe to display in a terminal."""

    server: str
    """The name of the server in `mcp.json`, or of a built-in group such as 'files'."""
    name: str
    """Its name on the server, where it is unique."""
    title: str = ""
    """A human-readable name; often empty."""
    description: str = ""
    """At most MAX_DESCRIPTION characters."""
    schema: str = '{"type":"object","properties":{}}'
    """JSON schema for the arguments, as text of at most MAX_SCHEMA characters."""
    read_only: bool | None = None
    """The server's claim that it changes nothing; None if absent. A hint to display, never a permission."""
    destructive: bool | None = None
    """The server's claim that it may delete or overwrite data; None if absent."""
    built_in: bool = False
    harmless: bool = False
    """Whether it needs no consent. Only for built-in tools that do not read the user's data."""

    @property
    def model_name(self) -> str:
        """The name that the model uses. Built-in tools never share a name with a server's tools."""
        name = self.name if self.built_in else f"{self.server}__{self.name}"
        return _NOT_IN_NAMES.sub("_", name)[:_MODEL_NAME_LENGTH]

    @property
    def pin(self) -> str:
        """SHA-256, in hexadecimal, of everything that consent covers: names, description and schema."""
        schema = json.dumps(json.loads(self.schema), sort_keys=True)
        parts = [self.server, self.name, self.title, self.description, schema]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a call. It is untrusted: it comes from a server, a file or the web."""

    text: str
    """Text for the model, without control characters; if the call failed, the reason."""
    images: tuple[bytes, ...] = ()
    """Image files, unchecked: decode them with `edgechat.base.images` only."""
    failed: bool = False
    """Whether the tool reported a failure, or the call itself failed."""
    error: EdgechatError | None = None
    """Why the tool did not answer, and what to do next, for the user; None if it did answer."""
    left_out: int = 0
    """Number of characters that were cut; unless it is 0, `text` ends by saying so."""
    seconds: float = 0.0


class ToolServer(Protocol):
    """Offers tools. All methods are called on one event loop; calls can run concurrently."""

    @property
    def name(self) -> str:
        """Its name; see `ToolSpec.server`."""
        ...

    async def tools(self) -> Sequence[ToolSpec]:
        """Return its tools, sorted by name, starting the server if necessary. Raises ToolError."""
        ...

    async def call(self, tool: ToolSpec, arguments: str) -> ToolResult:
        """Call a tool. arguments: a JSON object as text.

        Raises ToolError if there is no answer, or if the tool no longer matches `tool`. Cancelling this
        cancels the call on the server. The caller limits the time and the length of the text.
        """
        ...

    async def close(self) -> None:
        """Stop the server. Calls in progress raise ToolError."""
        ...


def inert(text: str) -> str:
    """Make text printable, and remove characters that models can see but people cannot.

    Unicode tags and other format characters can hide instructions. Joiners are preserved, because some
    scripts and emoji need them.
    """
    text = printable(text)
    if text.isascii():
        return text
    return "".join(c for c in text if c in "\u200c\u200d" or unicodedata.category(c) not in ("Cf", "Co"))


def shown_arguments(arguments: str) -> str:
    """Return a call's arguments for display: complete, inert, and indented if they are JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
    return visible_escapes(arguments)


def visible_escapes(text: str) -> str:
    r"""Return text with the characters that `inert` would remove written as \uXXXX."""
    return "".join(c if c in "\n\t" or inert(c) == c else f"\\u{ord(c):04x}" for c in text)
