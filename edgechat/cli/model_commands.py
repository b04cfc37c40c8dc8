"""The commands for the models that are here: list, show, rm, import and verify."""

from __future__ import annotations

from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import DebugOption, JsonOption, OfflineOption

_Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name of `edgechat list`, or a path.",
        autocompletion=completion.local_models,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_models)
    app.command("show")(show)
    app.command("rm")(rm)
    app.command("import")(import_file)
    app.command("verify", epilog="The exit code is 1 where something is damaged.")(verify)


def list_models(json: JsonOption = False, offline: OfflineOption = False, debug: DebugOption = False) -> None:
    """List the models on this machine, whoever downloaded them, and whether they fit now."""
    from edgechat.cli.commands import listing as command

    raise typer.Exit(command.run(json=json))


def show(
    model: _Model, json: JsonOption = False, offline: OfflineOption = False, debug: DebugOption = False
) -> None:
    """Show what a model is, where it lies, and how it would be loaded."""
    from edgechat.cli.commands import show as command

    raise typer.Exit(command.run(model, json=json))


def rm(
    model: _Model,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Remove a model from edgechat's folder or the hub's cache; other tools' models are theirs to remove."""
    from edgechat.cli.commands import rm as command

    raise typer.Exit(command.run(model, yes=yes))


def import_file(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A GGUF file, of a split model any part; or a folder for MLX."),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it; else as its file or folder.")] = None,
    move: Annotated[bool, typer.Option("--move", help="Do not leave it where it is.")] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Put a model of yours into edgechat's folder, without a second copy of its bytes where that can be."""
    from edgechat.cli.commands import importing as command

    raise typer.Exit(command.run(file, name=name, move=move))


def verify(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A name of `edgechat list`, or a path. None: all.",
            autocompletion=completion.local_models,
        ),
    ] = None,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Read models from the disk and see that they are undamaged, by their hashes where they are known."""
    from edgechat.cli.commands import verify as command

    raise typer.Exit(command.run(model))
