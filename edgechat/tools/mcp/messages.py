"""What an edgechat and the child that speaks to a tool server say to each other; each is one frame."""

from __future__ import annotations

import msgspec

from edgechat.tools.config import ServerConfig
from edgechat.tools.tool import ToolSpec


class StartServer(msgspec.Struct, frozen=True, tag=True):
    """Start a server, or connect to it. The first message, and once only."""

    config: ServerConfig
    """With the values of variables."""


class ListTools(msgspec.Struct, frozen=True, tag=True):
    """List the tools, anew if the server has said that they have changed."""

    id: int


class CallTool(msgspec.Struct, frozen=True, tag=True):
    """Call a tool."""

    id: int
    name: str
    arguments: str
    """A JSON object."""


class CancelCall(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for a request any more; unknown ones are ignored."""

    id: int


class ServerStarted(msgspec.Struct, frozen=True, tag=True):
    """The server speaks MCP."""

    title: str
    """Its name and version, as it says."""
    protocol: str


class ToolsListed(msgspec.Struct, frozen=True, tag=True):
    """The tools, sorted by name."""

    id: int
    tools: tuple[ToolSpec, ...]
    left_out: tuple[str, ...]
    """Why others are missing: a line for each."""


class ToolCalled(msgspec.Struct, frozen=True, tag=True):
    """A result; see ToolResult."""

    id: int
    text: str
    failed: bool
    images: tuple[bytes, ...] = ()


class RequestFailed(msgspec.Struct, frozen=True, tag=True):
    """A request has no result."""

    id: int
    why: str
    """Completes 'The tool server NAME ...'."""


class ServerLost(msgspec.Struct, frozen=True, tag=True):
    """The server cannot be started, or has ended, or was ended. The last message."""

    why: str
    """Completes 'The tool server NAME ...'."""
    said: str = ""
    """The end of what it wrote to stderr."""


ToChild = StartServer | ListTools | CallTool | CancelCall
FromChild = ServerStarted | ToolsListed | ToolCalled | RequestFailed | ServerLost
