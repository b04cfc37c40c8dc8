"""The commands for the models on this machine: list, show, rm, import, verify and quantize."""

from __future__ import annotations

from pathlib import Path

import click
from click.exceptions import Exit

from edgechat.cli import completion
from edgechat.cli.options import MOST, debug_option, json_option, offline_option
from edgechat.cli.parameters import Number, argument, command, option

_model = argument(
    "model",
    metavar="MODEL",
    help="A name shown by `edgechat list`, or a path.",
    complete=completion.local_models,
)


@command("list")
@json_option
@offline_option
@debug_option
def list_models(json: bool) -> None:
    """List the models on this machine, whichever tool downloaded them, and whether they fit now."""
    from edgechat.cli.commands import listing as command

    command.run(json=json)


@command("show")
@_model
@json_option
@offline_option
@debug_option
def show(model: str, json: bool) -> None:
    """Show what a model is, where it is stored, and how it would be loaded."""
    from edgechat.cli.commands import show as command

    command.run(model, json=json)


@command("rm")
@_model
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@offline_option
@debug_option
def rm(model: str, yes: bool) -> None:
    """Remove a model from edgechat's folder or the hub's cache; models of other tools are left to them."""
    from edgechat.cli.commands import models as command

    command.remove(model, yes=yes)


@command("import")
@argument(
    "file", metavar="FILE", help="A GGUF file (any shard of a split model), or the folder of an MLX model."
)
@option("--name", help="The model's name; default: the name of its file or folder.")
@option("--move", is_flag=True, help="Move the files instead of copying or linking them.")
@offline_option
@debug_option
def import_file(file: str, name: str | None, move: bool) -> None:
    """Add your own model to edgechat's folder, sharing the file's disk space where possible."""
    from edgechat.cli.commands import models as command

    command.import_file(file, name=name, move=move)


@command("verify", epilog="The exit code is 1 if a model is damaged.")
@argument(
    "model",
    required=False,
    metavar="MODEL",
    help="A name shown by `edgechat list`, or a path. Default: all models.",
    complete=completion.local_models,
)
@offline_option
@debug_option
def verify(model: str | None) -> None:
    """Check that models on disk are undamaged, by their hashes where those are known."""
    from edgechat.cli.commands import models as command

    raise Exit(command.verify_models(model))


@command("quantize")
@argument(
    "model",
    metavar="MODEL",
    help="The model to make a smaller one of: a GGUF file in F32, F16 or BF16, or a name shown by "
    "`edgechat list`.",
    complete=completion.local_models,
)
@argument(
    "quant",
    required=False,
    metavar="[QUANT]",
    help="A quantization, such as Q4_K_M; or give --fit or --loss.",
    complete=completion.quants,
)
@option(
    "--fit",
    metavar="SIZE|auto",
    help="Mix types so that the file has this size, such as 6GiB, and loses least. auto: the size "
    "that fits this machine's memory with the context of --ctx.",
)
@option(
    "--loss",
    type=Number(float, min=1e-4, max=10),
    help="Mix types so that the file is smallest and loses at most this: 0.02.",
)
@option("--ctx", type=Number(int, min=512, max=MOST), help="The context length for --fit auto, in tokens.")
@option(
    "--imatrix",
    metavar="FILE|auto",
    help="Use an importance matrix: of a text, of the text that edgechat brings (auto), or one in "
    "a GGUF file. --fit and --loss always do.",
    complete=completion.paths,
)
@option(
    "--save-imatrix",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the importance matrix to a GGUF file, as llama-imatrix does.",
    complete=completion.paths,
)
@option("--name", help="The new model's name; default: the old one's with its quantization.")
@option("--keep-split", is_flag=True, help="Write as many files as a split model has.")
@option("--threads", type=Number(int, min=1, max=1024), help="Threads; default: all.")
@option("--dry-run", is_flag=True, help="Show the size and types of QUANT, and stop.")
@json_option
@offline_option
@debug_option
def quantize(
    model: str,
    quant: str | None,
    fit: str | None,
    loss: float | None,
    ctx: int | None,
    imatrix: str | None,
    save_imatrix: Path | None,
    name: str | None,
    keep_split: bool,
    threads: int | None,
    dry_run: bool,
    json: bool,
) -> None:
    """Make a smaller model of one in 16 or 32 bits, into edgechat's folder."""
    from edgechat.cli.commands import quantize as command

    asked = [option for option in (quant, fit, loss) if option is not None]
    if len(asked) > 1:
        raise click.BadParameter("give one of QUANT, --fit and --loss")
    if not asked and save_imatrix is None:
        raise click.BadParameter("missing: give a quantization such as Q4_K_M, or --fit SIZE, or --loss NATS")
    if dry_run and quant is None:
        raise click.BadParameter("needs a quantization", param_hint="--dry-run")
    if keep_split and quant is None:
        raise click.BadParameter("needs a quantization", param_hint="--keep-split")
    if ctx is not None and fit != "auto":
        raise click.BadParameter("applies to --fit auto", param_hint="--ctx")
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
