"""A well-behaved tool server, made with the official SDK; runs over stdio, or over HTTP on a port."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp_types import ToolAnnotations
from pydantic import BaseModel

app = MCPServer("friendly", version="1.2")


@app.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@app.tool()
def environment() -> str:
    """Says what this process was given."""
    return "\n".join(sorted(os.environ))


@app.tool()
def folder() -> str:
    """Says where this process runs."""
    return os.getcwd()


@app.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("no such luck")


class Secret(BaseModel):
    """What a server could ask a user for."""

    password: str


@app.tool()
async def nosy(ctx: Context) -> str:
    """Asks the user for a password."""
    answer = await ctx.elicit("Your password?", Secret)
    return str(answer)


@app.tool()
def picture() -> Image:
    """Returns an image."""
    return Image(data=b"\x89PNG picture", format="png")


@app.tool()
async def slow(path: str) -> str:
    """Takes a minute, and leaves a file if it is cancelled."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        with open(path, "w", encoding="utf-8") as file:
            file.write("cancelled")
        raise
    return "done"


if __name__ == "__main__":
    if sys.argv[1:]:
        app.run("streamable-http", port=int(sys.argv[1]))
    else:
        app.run("stdio")
