"""The commands for the models on this machine: list, show, rm, import and verify."""

from __future__ import annotations

from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import DebugOption, JsonOption, OfflineOption

_Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name shown by `edgechat list`, or a path.",
        autocompletion=completion.local_models,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(list_models)
    app.command("show")(show)
    app.command("rm")(rm)
    app.command("import")(import_file)
    app.command("verify", epilog="The exit code is 1 if a model is damaged.")(verify)


def list_models(json: JsonOption = False, offline: OfflineOption = False, debug: DebugOption = False) -> None:
    """List the models on this machine, whichever tool downloaded them, and whether they fit now."""
    from edgechat.cli.commands import listing as command

    command.run(json=json)


def show(
    model: _Model, json: JsonOption = False, offline: OfflineOption = False, debug: DebugOption = False
) -> None:
    """Show what a model is, where it is stored, and how it would be loaded."""
    from edgechat.cli.commands import show as command

    command.run(model, json=json)


def rm(
    model: _Model,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Remove a model from edgechat's folder or the hub's cache; models of other tools are left to them."""
    from edgechat.cli.commands import models as command

    command.remove(model, yes=yes)


def import_file(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A GGUF file (any shard of a split model), or the folder of an MLX model."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's name; default: the name of its file or folder.")
    ] = None,
    move: Annotated[
        bool, typer.Option("--move", help="Move the files instead of copying or linking them.")
    ] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Add your own model to edgechat's folder, sharing the file's disk space where possible."""
    from edgechat.cli.commands import models as command

    command.import_file(file, name=name, move=move)


def verify(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A name shown by `edgechat list`, or a path. Default: all models.",
            autocompletion=completion.local_models,
        ),
    ] = None,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Check that models on disk are undamaged, by their hashes where those are known."""
    from edgechat.cli.commands import models as command

    raise typer.Exit(command.verify_models(model))
