"""The commands for tool servers: mcp with its subcommands."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from edgechat.cli import completion
from edgechat.cli.options import DebugOption, JsonOption, OfflineOption
from edgechat.cli.terminal_io import as_text

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A name shown by `edgechat mcp list`.", autocompletion=completion.tool_servers
    ),
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    tools = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    tools.callback()(mcp)
    epilog = (
        "Options of COMMAND follow --: edgechat mcp add disk -- npx -y "
        "@modelcontextprotocol/server-filesystem ~/notes"
    )
    tools.command("add", epilog=epilog)(add)
    tools.command("list")(list_servers)
    tools.command("test", epilog="The exit code is 1 if the server cannot be used.")(try_server)
    tools.command("forget")(forget)
    tools.command("rm")(rm)
    tools.command("import")(import_servers)
    app.add_typer(tools, name="mcp")


def mcp(offline: OfflineOption = False, debug: DebugOption = False) -> None:
    """Add, list and try tool servers (MCP), whose tools a model can call in a chat."""


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call the server.")],
    server: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND_OR_URL", help="The command that starts it, with arguments, or its URL."
        ),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Set an environment variable of the server; can be repeated. "
            "${NAME} in a value stands for one of your own, which is not written into the file.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:VALUE", help="Send a header to a server at a URL; can be repeated."),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Add a tool server to mcp.json; nothing is started."""
    from edgechat.cli.commands.servers import mcp as command

    command.add(
        as_text(name),
        [as_text(word) for word in server],
        env=dict(_pair(one, "=", "--env") for one in env or ()),
        headers=dict(_pair(one, ":", "--header") for one in header or ()),
    )


def list_servers(json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the tool servers, and what you have answered about their tools; nothing is started."""
    from edgechat.cli.commands.servers import mcp as command

    command.list_servers(json=json)


def try_server(
    name: _Name, json: JsonOption = False, offline: OfflineOption = False, debug: DebugOption = False
) -> None:
    """Start a tool server, list its tools, and end it; no tool is called."""
    from edgechat.cli.commands.servers import mcp as command

    raise typer.Exit(command.test(as_text(name), json=json))


def forget(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A server, or one of its tools: SERVER/TOOL.")],
    debug: DebugOption = False,
) -> None:
    """Forget what you have answered about tools, so that they are asked for again."""
    from edgechat.cli.commands.servers import mcp as command

    command.forget(as_text(name))


def rm(name: _Name, yes: _Yes = False, debug: DebugOption = False) -> None:
    """Remove a tool server from mcp.json, and forget what you have answered about its tools."""
    from edgechat.cli.commands.servers import mcp as command

    command.remove(as_text(name), yes=yes)


def import_servers(
    source: Annotated[
        Literal["claude", "cursor", "lmstudio"] | None,
        typer.Argument(metavar="[claude|cursor|lmstudio]", help="The program. Default: all that are here."),
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="Another file in the same notation.")
    ] = None,
    yes: _Yes = False,
    debug: DebugOption = False,
) -> None:
    """Copy tool servers from Claude Desktop, Cursor or LM Studio, after showing them."""
    from edgechat.cli.commands.servers import mcp as command

    command.import_servers(source, file, yes=yes)


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = as_text(text).partition(mark)
    if not found or not name.strip():
        raise typer.BadParameter(f"{text!r} has no {mark!r}", param_hint=option)
    return name.strip(), value.strip() if mark == ":" else value
