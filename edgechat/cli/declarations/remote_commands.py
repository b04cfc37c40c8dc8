"""The commands for servers of models: remote with its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import DebugOption, JsonOption, OfflineOption
from edgechat.cli.terminal_io import as_text
from edgechat.settings import RemoteKind

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A name shown by `edgechat remote list`.", autocompletion=completion.remotes
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    remotes = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    remotes.callback()(remote)
    remotes.command("add")(add)
    remotes.command("list")(list_servers)
    remotes.command("test", epilog="The exit code is 1 if the server cannot be used.")(try_server)
    remotes.command("rm")(rm)
    app.add_typer(remotes, name="remote")


def remote(offline: OfflineOption = False, debug: DebugOption = False) -> None:
    """Add, list and try other servers, whose models answer as NAME/MODEL (vLLM, Ollama, ...)."""


def add(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where it is: http://desk.local:8000")],
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What to call it. Default: the beginning of its host's name."),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="The environment variable that has the key it wants."),
    ] = None,
    kind: Annotated[
        RemoteKind | None, typer.Option(help="What it is. Default: found out by asking it.")
    ] = None,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Add a server to settings.toml, and list its models."""
    from edgechat.cli.commands.servers import remote as command

    name = as_text(name) if name is not None else None
    key_env = as_text(key_env) if key_env is not None else None
    command.add(as_text(url), name=name, key_env=key_env, kind=kind)


def list_servers(json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the servers; none is asked. `edgechat list` lists their models."""
    from edgechat.cli.commands.servers import remote as command

    command.list_servers(json=json)


def try_server(
    name: _Name, json: JsonOption = False, offline: OfflineOption = False, debug: DebugOption = False
) -> None:
    """Ask a server what it is and which models it has; or, as NAME/MODEL, a model for a short answer."""
    from edgechat.cli.commands.servers import remote as command

    raise typer.Exit(command.test(as_text(name), json=json))


def rm(
    name: _Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    debug: DebugOption = False,
) -> None:
    """Remove a server from settings.toml."""
    from edgechat.cli.commands.servers import remote as command

    command.remove(as_text(name), yes=yes)
