"""The commands for servers of models: remote with its subcommands."""

from __future__ import annotations

from typing import get_args

import click
from click.exceptions import Exit

from edgechat.cli import completion
from edgechat.cli.group import CliGroup
from edgechat.cli.options import debug_option, json_option, offline_option
from edgechat.cli.parameters import argument, option
from edgechat.cli.terminal_io import as_text
from edgechat.settings import RemoteKind

_name = argument(
    "name", metavar="NAME", help="A name shown by `edgechat remote list`.", complete=completion.remotes
)


@click.group("remote", cls=CliGroup, no_args_is_help=True)
@offline_option
@debug_option
def remote() -> None:
    """Add, list and try other servers, whose models answer as NAME/MODEL (vLLM, Ollama, ...)."""


@remote.command("add")
@argument("url", metavar="URL", help="Where it is: http://desk.local:8000")
@option("--name", metavar="NAME", help="What to call it. Default: the beginning of its host's name.")
@option("--key-env", metavar="VARIABLE", help="The environment variable that has the key it wants.")
@option(
    "--kind", type=click.Choice(get_args(RemoteKind)), help="What it is. Default: found out by asking it."
)
@offline_option
@debug_option
def add(url: str, name: str | None, key_env: str | None, kind: RemoteKind | None) -> None:
    """Add a server to settings.toml, and list its models."""
    from edgechat.cli.commands.servers import remote as command

    name = as_text(name) if name is not None else None
    key_env = as_text(key_env) if key_env is not None else None
    command.add(as_text(url), name=name, key_env=key_env, kind=kind)


@remote.command("list")
@json_option
@debug_option
def list_servers(json: bool) -> None:
    """List the servers; none is asked. `edgechat list` lists their models."""
    from edgechat.cli.commands.servers import remote as command

    command.list_servers(json=json)


@remote.command("test", epilog="The exit code is 1 if the server cannot be used.")
@_name
@json_option
@offline_option
@debug_option
def try_server(name: str, json: bool) -> None:
    """Ask a server what it is and which models it has; or, as NAME/MODEL, a model for a short answer."""
    from edgechat.cli.commands.servers import remote as command

    raise Exit(command.test(as_text(name), json=json))


@remote.command("rm")
@_name
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@debug_option
def rm(name: str, yes: bool) -> None:
    """Remove a server from settings.toml."""
    from edgechat.cli.commands.servers import remote as command

    command.remove(as_text(name), yes=yes)
