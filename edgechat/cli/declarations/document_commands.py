"""The commands for documents: docs with its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import DebugOption, JsonOption, OfflineOption
from edgechat.cli.terminal_io import as_text

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A name shown by `edgechat docs list`.", autocompletion=completion.documents
    ),
]
_SERVE_EPILOG = "For Claude Code: claude mcp add handbook -- edgechat docs serve handbook"


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    documents = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    documents.callback()(docs)
    documents.command("add")(add)
    documents.command("list")(list_documents)
    documents.command("update")(update)
    documents.command("search")(search)
    documents.command("rm")(rm)
    documents.command("serve", epilog=_SERVE_EPILOG)(serve)
    app.add_typer(documents, name="docs")


def docs(offline: OfflineOption = False, debug: DebugOption = False) -> None:
    """Add, list and search documents, about which models can be asked."""


def add(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Folders and files.")],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What to call them. Default: the first folder's or file's own name."
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Add folders and files to documents, new ones or known ones, and read them."""
    from edgechat.cli.commands import documents as command

    command.add([as_text(path) for path in paths], as_text(name) if name is not None else None)


def list_documents(json: JsonOption = False, debug: DebugOption = False) -> None:
    """List the documents: what they are called, where they are, and how much is in them."""
    from edgechat.cli.commands import documents as command

    command.list_documents(json=json)


def update(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Default: all.", autocompletion=completion.documents),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Read what has changed; a question does so, too."""
    from edgechat.cli.commands import documents as command

    command.update([as_text(name) for name in names or ()])


def search(
    name: _Name,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Words, or a whole question.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="How many passages.")] = 8,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Print the passages that a model would be given for a question, the best first."""
    from edgechat.cli.commands import documents as command

    command.search(as_text(name), as_text(question), limit, json=json)


def rm(
    name: _Name,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Only these folders and files of it. Default: all."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    debug: DebugOption = False,
) -> None:
    """Forget documents; the files themselves stay."""
    from edgechat.cli.commands import documents as command

    command.remove(as_text(name), [as_text(path) for path in paths or ()], yes=yes)


def serve(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="Default: whichever there are, also later.",
            autocompletion=completion.documents,
        ),
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Let another program, which starts this, search and read documents, over MCP (stdin and stdout)."""
    from edgechat.cli.commands import documents as command

    command.serve([as_text(name) for name in names or ()])
