"""`edgechat mcp`: the tool servers in mcp.json. docs/tools.md describes --json."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from click.exceptions import Exit

from edgechat.base.errors import SettingsError, ToolError
from edgechat.base.text import flat, one_line
from edgechat.cli import completion
from edgechat.cli.declaring import TEXT, CliGroup, argument, option
from edgechat.cli.options import json_option
from edgechat.cli.terminal_io import complain, confirm, note, print_json
from edgechat.tools.config import (
    BUILT_IN,
    NAMES,
    ServerConfig,
    add_servers,
    config_files,
    config_path,
    entries_of,
    read_servers,
    remove_server,
    server_of,
)

if TYPE_CHECKING:
    from edgechat.tools.consent import GivenConsent
    from edgechat.tools.tool import ToolSpec

_yes = option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
_name = argument(
    "name",
    metavar="NAME",
    help="A name shown by `edgechat mcp list`.",
    type=TEXT,
    complete=completion.tool_servers,
)


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name.strip():
        raise click.BadParameter(f"{text!r} has no {mark!r}", param_hint=option)
    return name.strip(), value.strip() if mark == ":" else value


@click.group("mcp", cls=CliGroup, no_args_is_help=True, offline=True)
def mcp() -> None:
    """Add, list and try tool servers (MCP), whose tools a model can call in a chat."""


@mcp.command(
    "add",
    epilog="Options of COMMAND follow --: edgechat mcp add disk -- npx -y "
    "@modelcontextprotocol/server-filesystem ~/notes",
)
@argument("name", metavar="NAME", help="Name of the server.", type=TEXT)
@argument(
    "server",
    nargs=-1,
    required=True,
    metavar="COMMAND_OR_URL",
    help="The command that starts it, with arguments, or its URL.",
    type=TEXT,
)
@option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    type=TEXT,
    help="Set an environment variable of the server; can be repeated. "
    "${NAME} in a value stands for one of your own, which is not written into the file.",
)
@option(
    "--header",
    multiple=True,
    metavar="NAME:VALUE",
    type=TEXT,
    help="Send a header to a server at a URL; can be repeated.",
)
def add(name: str, server: tuple[str, ...], env: tuple[str, ...], header: tuple[str, ...]) -> None:
    """Add a tool server to mcp.json; nothing is started."""
    environment = dict(_pair(one, "=", "--env") for one in env)
    headers = dict(_pair(one, ":", "--header") for one in header)
    if server[0].startswith(("http://", "https://")):
        if environment or len(server) > 1:
            raise SettingsError(
                "A server at a URL has no arguments and no environment; it can have --header."
            )
        entry: dict[str, Any] = {"url": server[0], "headers": headers}
    else:
        if headers:
            raise SettingsError("A server that is started by a command has no headers; it can have --env.")
        entry = {"command": _absolute(server[0]), "args": list(server[1:]), "env": environment}
    path, config = config_path(), server_of(name, entry)
    if name in read_servers(path):
        raise SettingsError(
            f"There is already a tool server named {name}.", hint=f"To remove it: edgechat mcp rm {name}"
        )
    add_servers(path, config)
    print(flat(f"Added {name} to {path}."))
    print(flat(f"To start it once and list its tools: edgechat mcp test {name}"))


@mcp.command("list")
@json_option
def list_servers(json: bool) -> None:
    """List the tool servers, and what you have answered about their tools; nothing is started."""
    import asyncio

    servers, answers = read_servers(config_path()), asyncio.run(_answers())
    known = [(name, about, True) for name, about in BUILT_IN.items()]
    known += [(name, server.shown, False) for name, server in servers.items()]
    if json:
        print_json(
            [
                {
                    "name": name,
                    "about": about,
                    "built_in": built_in,
                    "answers": [_as_json(given, "tool", "answer") for given in answers[name]],
                }
                for name, about, built_in in known
            ]
        )
        return
    width = max(len(name) for name, _, _ in known)
    for name, about, _ in known:
        print(f"{flat(name):{width}}  {flat(about)}")
        for given in answers[name]:
            print(f"{'':{width}}    {_shown_answer(given)}")
    if not servers:
        print("\nThere are no tool servers yet. To add one: edgechat mcp add NAME COMMAND_OR_URL")


@mcp.command("test", epilog="The exit code is 1 if the server cannot be used.", offline=True)
@_name
@json_option
def try_server(name: str, json: bool) -> None:
    """Start a tool server, list its tools, and end it; no tool is called."""
    import asyncio

    from edgechat.tools.mcp.connection import log_path

    server = _server(name)
    trial = asyncio.run(_tried(server))
    if json:
        fields = ("name", "description", "schema", "read_only", "destructive")
        tools = [_as_json(tool, *fields) for tool in trial.tools]
        error = trial.error.message if trial.error is not None else None
        print_json({**_as_json(trial, "title", "left_out"), "name": name, "error": error, "tools": tools})
    elif trial.error is not None:
        where = f"What it wrote: {log_path(server)}" if server.command else f"Its address: {server.shown}"
        complain(trial.error.message, where)
    else:
        n_tools = len(trial.tools)
        print(f"{flat(name)} works: {trial.title}, {n_tools} tool{'s' * (n_tools != 1)}.")
        for tool in trial.tools:
            print(f"  {flat(tool.name)}{_hints(tool)}: {one_line(tool.description, 160)}")
        for line in trial.left_out:
            note(f"not offered: {line}")
    raise Exit(int(trial.error is not None))


@mcp.command("forget")
@argument("name", metavar="NAME", help="A server, or one of its tools: SERVER/TOOL.", type=TEXT)
def forget(name: str) -> None:
    """Forget what you have answered about tools, so that they are asked for again."""
    import asyncio

    from edgechat.tools.consent import ConsentStore, consents_path

    server, _, tool = name.partition("/")
    n_forgotten = asyncio.run(ConsentStore(consents_path()).withdraw(server, tool or None))
    print(f"{n_forgotten or 'No'} answer{'s' * (n_forgotten != 1)} forgotten.")


@mcp.command("rm")
@_name
@_yes
def rm(name: str, yes: bool) -> None:
    """Remove a tool server from mcp.json, and forget what you have answered about its tools."""
    import asyncio

    from edgechat.tools.consent import ConsentStore, consents_path

    server = _server(name)
    print(f"{flat(name)}  {flat(server.shown)}")
    if not yes:
        confirm("Remove it?", "Nothing was removed", "Add --yes to remove it.")
    asyncio.run(ConsentStore(consents_path()).withdraw(name))
    remove_server(config_path(), name)
    print(flat(f"Removed {name} from {config_path()}."))


@mcp.command("import")
@argument(
    "source",
    type=click.Choice(["claude", "cursor", "lmstudio"]),
    required=False,
    metavar="[claude|cursor|lmstudio]",
    help="The program. Default: all that are found.",
)
@option("--file", metavar="FILE", help="Another file in the same notation.")
@_yes
def import_servers(
    source: Literal["claude", "cursor", "lmstudio"] | None, file: str | None, yes: bool
) -> None:
    """Copy tool servers from Claude Desktop, Cursor or LM Studio, after showing them."""
    here, new = read_servers(config_path()), dict[str, ServerConfig]()
    for path in _sources(source, file):
        print(flat(f"{path}:"))
        for server in _readable(path):
            known = server.name in here or server.name in new
            print(flat(f"  {server.name}  {server.shown}{_named(server)}" + " (there already)" * known))
            if not known:
                new[server.name] = server
    if not new:
        print("There is nothing to import.")
        return
    if not yes:
        what = f"{len(new)} tool server{'s' * (len(new) > 1)}"
        confirm(f"Import {what}?", "Nothing was imported", "Add --yes to import them.")
    add_servers(config_path(), *new.values())
    print(flat(f"Imported into {config_path()}: {', '.join(new)}."))


def _absolute(command: str) -> str:
    """Return a command unchanged, or as an absolute path if it is the path to a file."""
    is_path = os.sep in command and os.path.isfile(os.path.expanduser(command))
    return os.path.abspath(os.path.expanduser(command)) if is_path else command


def _sources(program: str | None, file: str | None) -> list[Path]:
    """Return the files to import tool servers from. Raises SettingsError if there are none."""
    if file is not None:
        path = Path(file).expanduser()
        if not path.is_file():
            raise SettingsError(f"There is no file {one_line(file)}.")
        return [path]
    programs = [program] if program is not None else list(NAMES)
    found = [path for one in programs for path in config_files(one) if path.is_file()]
    if not found:
        names = NAMES[program] if program is not None else "Claude Desktop, Cursor and LM Studio"
        raise SettingsError(
            f"No tool servers from {names} were found here.",
            hint="Name another file: edgechat mcp import --file FILE",
        )
    return found


def _readable(path: Path) -> list[ServerConfig]:
    """Return the usable servers in another program's file, and print notes about the others."""
    servers = []
    for name, entry in entries_of(path).items():
        try:
            servers.append(server_of(name, entry))
        except SettingsError as error:
            note(f"left out: {error.message}")
    return servers


def _named(server: ServerConfig) -> str:
    """Return the names, but not the values, of a server's variables and headers, as text."""
    names = [*server.env, *server.headers]
    return f" (with {', '.join(names)})" if names else ""


def _server(name: str) -> ServerConfig:
    servers = read_servers(config_path())
    if name not in servers:
        if name in BUILT_IN:
            raise ToolError(f"{name} is part of edgechat: there is nothing to start or remove.")
        raise ToolError(
            f"There is no tool server {one_line(name, 60)!r}.", hint="To list them: edgechat mcp list"
        )
    return servers[name]


def _as_json(value: object, *fields: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in fields}


@dataclass(frozen=True, slots=True)
class _Trial:
    """The result of trying to start a server."""

    title: str = ""
    tools: Sequence[ToolSpec] = ()
    left_out: Sequence[str] = ()
    error: ToolError | None = None


async def _tried(config: ServerConfig) -> _Trial:
    from edgechat.tools.mcp.server import McpServer

    server = McpServer(config)
    try:
        tools = await server.tools()
        return _Trial(server.title, tools, server.left_out)
    except ToolError as error:
        return _Trial(error=error)
    finally:
        await server.close()


async def _answers() -> Mapping[str, Sequence[GivenConsent]]:
    """Return the user's stored answers about tools, keyed by server."""
    from edgechat.tools.consent import ConsentStore, GivenConsent, consents_path

    found = defaultdict[str, list[GivenConsent]](list)
    for given in await ConsentStore(consents_path()).given():
        found[given.server].append(given)
    return found


def _hints(tool: ToolSpec) -> str:
    says = [("changes nothing", tool.read_only), ("may delete or overwrite", tool.destructive)]
    said = [text for text, is_said in says if is_said]
    return f" (says that it {' and '.join(said)})" if said else ""


def _shown_answer(given: GivenConsent) -> str:
    answer = "always, in one chat" if given.answer == "chat" else given.answer
    return f"{flat(given.tool)}: {answer}"
