"""The commands for tool servers: mcp with its subcommands."""

from __future__ import annotations

from typing import Literal

import click
from click.exceptions import Exit

from edgechat.cli import completion
from edgechat.cli.group import CliGroup
from edgechat.cli.options import debug_option, json_option, offline_option
from edgechat.cli.parameters import argument, option
from edgechat.cli.terminal_io import as_text

_yes = option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
_name = argument(
    "name", metavar="NAME", help="A name shown by `edgechat mcp list`.", complete=completion.tool_servers
)


@click.group("mcp", cls=CliGroup, no_args_is_help=True)
@offline_option
@debug_option
def mcp() -> None:
    """Add, list and try tool servers (MCP), whose tools a model can call in a chat."""


@mcp.command(
    "add",
    epilog="Options of COMMAND follow --: edgechat mcp add disk -- npx -y "
    "@modelcontextprotocol/server-filesystem ~/notes",
)
@argument("name", metavar="NAME", help="What to call the server.")
@argument(
    "server",
    nargs=-1,
    required=True,
    metavar="COMMAND_OR_URL",
    help="The command that starts it, with arguments, or its URL.",
)
@option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set an environment variable of the server; can be repeated. "
    "${NAME} in a value stands for one of your own, which is not written into the file.",
)
@option(
    "--header",
    multiple=True,
    metavar="NAME:VALUE",
    help="Send a header to a server at a URL; can be repeated.",
)
@debug_option
def add(name: str, server: tuple[str, ...], env: tuple[str, ...], header: tuple[str, ...]) -> None:
    """Add a tool server to mcp.json; nothing is started."""
    from edgechat.cli.commands.servers import mcp as command

    command.add(
        as_text(name),
        [as_text(word) for word in server],
        env=dict(_pair(one, "=", "--env") for one in env),
        headers=dict(_pair(one, ":", "--header") for one in header),
    )


@mcp.command("list")
@json_option
@debug_option
def list_servers(json: bool) -> None:
    """List the tool servers, and what you have answered about their tools; nothing is started."""
    from edgechat.cli.commands.servers import mcp as command

    command.list_servers(json=json)


@mcp.command("test", epilog="The exit code is 1 if the server cannot be used.")
@_name
@json_option
@offline_option
@debug_option
def try_server(name: str, json: bool) -> None:
    """Start a tool server, list its tools, and end it; no tool is called."""
    from edgechat.cli.commands.servers import mcp as command

    raise Exit(command.test(as_text(name), json=json))


@mcp.command("forget")
@argument("name", metavar="NAME", help="A server, or one of its tools: SERVER/TOOL.")
@debug_option
def forget(name: str) -> None:
    """Forget what you have answered about tools, so that they are asked for again."""
    from edgechat.cli.commands.servers import mcp as command

    command.forget(as_text(name))


@mcp.command("rm")
@_name
@_yes
@debug_option
def rm(name: str, yes: bool) -> None:
    """Remove a tool server from mcp.json, and forget what you have answered about its tools."""
    from edgechat.cli.commands.servers import mcp as command

    command.remove(as_text(name), yes=yes)


@mcp.command("import")
@argument(
    "source",
    type=click.Choice(["claude", "cursor", "lmstudio"]),
    required=False,
    metavar="[claude|cursor|lmstudio]",
    help="The program. Default: all that are here.",
)
@option("--file", metavar="FILE", help="Another file in the same notation.")
@_yes
@debug_option
def import_servers(
    source: Literal["claude", "cursor", "lmstudio"] | None, file: str | None, yes: bool
) -> None:
    """Copy tool servers from Claude Desktop, Cursor or LM Studio, after showing them."""
    from edgechat.cli.commands.servers import mcp as command

    command.import_servers(source, file, yes=yes)


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = as_text(text).partition(mark)
    if not found or not name.strip():
        raise click.BadParameter(f"{text!r} has no {mark!r}", param_hint=option)
    return name.strip(), value.strip() if mark == ":" else value
