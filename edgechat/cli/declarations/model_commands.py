"""The commands for the models on this machine: list, show, rm, import, verify and quantize."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import MOST, DebugOption, JsonOption, OfflineOption

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
    app.command("quantize")(quantize)


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


def quantize(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="The model to make a smaller one of: a GGUF file in F32, F16 or BF16, or a name shown by "
            "`edgechat list`.",
            autocompletion=completion.local_models,
        ),
    ],
    quant: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUANT]",
            help="A quantization, such as Q4_K_M; or give --fit or --loss.",
            autocompletion=completion.quants,
            show_default=False,
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE|auto",
            help="Mix types so that the file has this size, such as 6GiB, and loses least. auto: the size "
            "that fits this machine's memory with the context of --ctx.",
        ),
    ] = None,
    loss: Annotated[
        float | None,
        typer.Option(
            min=1e-4, max=10, help="Mix types so that the file is smallest and loses at most this: 0.02."
        ),
    ] = None,
    ctx: Annotated[
        int | None, typer.Option(min=512, max=MOST, help="The context length for --fit auto, in tokens.")
    ] = None,
    imatrix: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|auto",
            help="Use an importance matrix: of a text, of the text that edgechat brings (auto), or one in "
            "a GGUF file. --fit and --loss always do.",
            autocompletion=completion.paths,
        ),
    ] = None,
    save_imatrix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the importance matrix to a GGUF file, as llama-imatrix does.",
            autocompletion=completion.paths,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The new model's name; default: the old one's with its quantization.")
    ] = None,
    keep_split: Annotated[
        bool, typer.Option("--keep-split", help="Write as many files as a split model has.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, max=1024, help="Threads; default: all.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the size and types of QUANT, and stop.")
    ] = False,
    json: JsonOption = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Make a smaller model of one in 16 or 32 bits, into edgechat's folder."""
    from edgechat.cli.quantize import command

    asked = [option for option in (quant, fit, loss) if option is not None]
    if len(asked) > 1:
        raise typer.BadParameter("give one of QUANT, --fit and --loss")
    if not asked and save_imatrix is None:
        raise typer.BadParameter("missing: give a quantization such as Q4_K_M, or --fit SIZE, or --loss NATS")
    if dry_run and quant is None:
        raise typer.BadParameter("needs a quantization", param_hint="--dry-run")
    if keep_split and quant is None:
        raise typer.BadParameter("needs a quantization", param_hint="--keep-split")
    if ctx is not None and fit != "auto":
        raise typer.BadParameter("applies to --fit auto", param_hint="--ctx")
    matrix = {None: None, "auto": ""}.get(imatrix, imatrix)
    options = command.QuantizeOptions(
        quant=quant,
        fit=fit,
        loss=loss,
        context=ctx,
        imatrix="" if matrix is None and save_imatrix is not None else matrix,
        save_imatrix=save_imatrix,
        name=name,
        keep_split=keep_split,
        threads=threads,
    )
    command.run(model, options, dry_run=dry_run, json=json)
