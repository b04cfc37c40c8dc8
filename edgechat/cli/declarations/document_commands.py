"""The commands for documents: docs with its subcommands."""

from __future__ import annotations

import click

from edgechat.cli import completion
from edgechat.cli.group import CliGroup
from edgechat.cli.options import debug_option, json_option, offline_option
from edgechat.cli.parameters import Number, argument, option
from edgechat.cli.terminal_io import as_text

_name = argument(
    "name", metavar="NAME", help="A name shown by `edgechat docs list`.", complete=completion.documents
)


@click.group("docs", cls=CliGroup, no_args_is_help=True)
@offline_option
@debug_option
def docs() -> None:
    """Add, list and search documents, about which models can be asked."""


@docs.command("add")
@argument("paths", nargs=-1, required=True, metavar="PATH...", help="Folders and files.")
@option("--name", metavar="NAME", help="What to call them. Default: the first folder's or file's own name.")
@option("--yes", "-y", is_flag=True, help="Do not ask before reading a huge folder, such as a whole disk.")
@debug_option
def add(paths: tuple[str, ...], name: str | None, yes: bool) -> None:
    """Add folders and files to documents, new ones or known ones, and read them."""
    from edgechat.cli.commands import documents as command

    command.add([as_text(path) for path in paths], as_text(name) if name is not None else None, yes=yes)


@docs.command("list")
@json_option
@debug_option
def list_documents(json: bool) -> None:
    """List the documents: what they are called, where they are, and how much is in them."""
    from edgechat.cli.commands import documents as command

    command.list_documents(json=json)


@docs.command("update")
@argument(
    "names",
    nargs=-1,
    required=False,
    metavar="[NAME]...",
    help="Default: all.",
    complete=completion.documents,
)
@debug_option
def update(names: tuple[str, ...]) -> None:
    """Read what has changed; a question does so, too."""
    from edgechat.cli.commands import documents as command

    command.update([as_text(name) for name in names])


@docs.command("search")
@argument(
    "names",
    nargs=-1,
    required=False,
    metavar="[NAME]...",
    help="Names shown by `edgechat docs list`. Default: all.",
    complete=completion.documents,
)
@argument("question", metavar="QUESTION", help="Words, or a whole question.")
@option("--limit", type=Number(int, min=1, max=50), default=8, help="How many passages.")
@json_option
@debug_option
def search(names: tuple[str, ...], question: str, limit: int, json: bool) -> None:
    """Print the passages that a model would be given for a question, the best first."""
    from edgechat.cli.commands import documents as command

    command.search([as_text(name) for name in names], as_text(question), limit, json=json)


@docs.command("rm")
@_name
@argument(
    "paths",
    nargs=-1,
    required=False,
    metavar="[PATH]...",
    help="Only these folders and files of it. Default: all.",
)
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@debug_option
def rm(name: str, paths: tuple[str, ...], yes: bool) -> None:
    """Forget documents; the files themselves stay."""
    from edgechat.cli.commands import documents as command

    command.remove(as_text(name), [as_text(path) for path in paths], yes=yes)


@docs.command("serve", epilog="For Claude Code: claude mcp add handbook -- edgechat docs serve handbook")
@argument(
    "names",
    nargs=-1,
    required=False,
    metavar="[NAME]...",
    help="Default: whichever there are, also later.",
    complete=completion.documents,
)
@debug_option
def serve(names: tuple[str, ...]) -> None:
    """Let another program, which starts this, search and read documents, over MCP (stdin and stdout)."""
    from edgechat.cli.commands import documents as command

    command.serve([as_text(name) for name in names])
