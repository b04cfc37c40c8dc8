"""`edgechat quantize`: create a smaller model file from one with 16 or 32 bits per weight.

With --json, one object is printed:

    path, name, level, size, source_size, loss (in nats; null if it was not measured)
    types     the type of each quantized tensor
    compared  level, size and loss of the standard quantization that the mixture was compared with, or null
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgechat.base.errors import BadRequest
from edgechat.base.text import figure, flat, mebibytes, one_line
from edgechat.cli import completion
from edgechat.cli.declaring import Number, argument, command, option
from edgechat.cli.options import MOST, json_option
from edgechat.cli.terminal_io import StatusLine, print_json, sheet, styled, table
from edgechat.cli.values import amount
from edgechat.models.formats.quants import GgmlType
from edgechat.quantize.mixtures import level_named

if TYPE_CHECKING:
    from edgechat.quantize.making import QuantizedModel, Source

_SMALLEST = "Q2_K"


@command("quantize", offline=True)
@argument(
    "model",
    metavar="MODEL",
    help="The model to quantize: a GGUF file in F32, F16 or BF16, or a name shown by `edgechat list`.",
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
    help="Mix types for the least loss at this size, such as 6GiB. auto: the size "
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
    help="Use an importance matrix: of a text, of the text that ships with edgechat (auto), or one in "
    "a GGUF file. --fit and --loss always use one.",
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
    from edgechat.quantize.making import QuantizeRequest, Source, is_matrix, make

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
    if matrix is None and save_imatrix is not None:
        matrix = ""
    level = level_named(quant) if quant is not None else None
    n_bytes = None if fit in (None, "auto") else amount("--fit", fit)
    if matrix and not Path(matrix).is_file():
        raise BadRequest(f"{one_line(matrix)} is not a file.", hint="Check the path, or use auto.")
    if save_imatrix is not None and is_matrix(matrix):
        raise BadRequest(
            f"{one_line(str(matrix))} is already an importance matrix, so there is nothing to save.",
            hint="Omit --save-imatrix, or give a text file: --imatrix TEXT",
        )
    if save_imatrix is not None and not save_imatrix.absolute().parent.is_dir():
        raise BadRequest(f"There is no folder {one_line(str(save_imatrix.parent))}.")
    source = Source(model)
    with StatusLine(sys.stderr) as status:
        if fit == "auto":
            status.show("inspecting this machine")
            n_bytes = affordable(source, ctx)
        for warning in _warnings(source, n_bytes):
            status.clear()
            print(flat(f"Warning: {warning}"), file=sys.stderr)
        if level is not None and dry_run:
            _print_dry_run(source, level, has_importance=matrix is not None, json=json)
            return
        request = QuantizeRequest(
            model=model,
            level=level,
            n_bytes=n_bytes,
            loss=loss,
            imatrix=matrix,
            save_imatrix=save_imatrix,
            name=name,
            keep_split=keep_split,
            threads=threads,
        )
        made = make(source, request, status.show)
    if made is None:
        print(f"Importance matrix written to {flat(str(save_imatrix))}")
    elif json:
        print_json(_object(made))
    else:
        print(sheet(_rows(made), bold=styled(sys.stdout), width=13))


def affordable(source: Source, context: int | None) -> int:
    """Return the size, in bytes, of the largest file that fits with this context. Raises DoesNotFit."""
    from edgechat.planner.candidates import of_path
    from edgechat.planner.estimate.dry_run import DryRun
    from edgechat.planner.machine import Machine, current_profile
    from edgechat.planner.placement.plan_model import plan_variant
    from edgechat.planner.request import PlanRequest
    from edgechat.quantize.making import level_types, sizes_of

    (types,) = level_types(source, [_SMALLEST], has_importance=True)
    sizes = sizes_of(source.header, types)
    tensors = tuple(
        replace(tensor, n_bytes=sizes[tensor.name], type=GgmlType[types[tensor.name]])
        if types.get(tensor.name)
        else tensor
        for tensor in source.header.tensors
    )
    header = replace(source.header, tensors=tensors, file_size=source.file_size(types))
    variant = replace(of_path(str(source.path)), header=lambda: header, size=header.file_size)
    with DryRun() as dry:
        machine = Machine(current_profile(dry), dry=dry).timed_for([header])
        request = PlanRequest(context=context, draft="none", vision=False)
        plan = plan_variant(variant, machine, request)
    main = max(plan.memory, key=lambda memory: memory.weights_bytes)
    spare = main.budget_bytes - main.total_bytes
    return header.file_size + max(0, spare)


def _warnings(source: Source, n_bytes: int | None) -> Iterator[str]:
    """Yield reasons to quantize a different source, or to use this one as it is.

    n_bytes: the requested size.
    """
    name, size = source.path.name, source.header.file_size
    if source.is_quantized:
        yield (
            f"{name} is already quantized ({source.header.quant or 'mixed'}), and what that lost cannot "
            "be recovered. A file in F16 or BF16 gives a better result."
        )
    if n_bytes is not None and size <= n_bytes:
        yield f"{name} itself takes only {mebibytes(size)}, so it can stay as it is."


def _print_dry_run(source: Source, level: str, *, has_importance: bool, json: bool) -> None:
    from edgechat.quantize.making import level_types, sizes_of

    (types,) = level_types(source, [level], has_importance=has_importance)
    size = source.file_size(types)
    quantized = {name: kind for name, kind in types.items() if kind}
    if json:
        print_json({"level": level, "size": size, "source_size": source.header.file_size, "types": quantized})
        return
    rows = [("Size", f"{mebibytes(size)}, of {mebibytes(source.header.file_size)}"), ("", "")]
    print(sheet([*rows, ("Types", _types_table(quantized, sizes_of(source.header, types)))], width=13))


def _rows(made: QuantizedModel) -> Iterator[tuple[str, str]]:
    weights = f"{mebibytes(made.size)}, of {mebibytes(made.source_size)}"
    yield "Model", made.name
    yield "File", f"{weights}\n  {made.path}"
    if made.loss is not None:
        yield "Loss", f"{figure(made.loss)} nats (KL divergence from the source, measured)"
    if made.rival is not None:
        level, size, loss = made.rival
        same = "No better mixture was found, so this one was used." if loss == made.loss else ""
        yield "", f"{level} with the same importance matrix, {mebibytes(size)}: {figure(loss)} nats. {same}"
    yield "", ""
    yield "Types", _types_table(made.types, made.sizes)
    yield "", ""
    yield "Chat", f"edgechat run {made.name}"


def _types_table(types: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """Return a table that shows which types are used for each kind of tensor."""
    total = max(1, sum(sizes.values()))
    kinds: dict[str, list[str]] = {}
    for name in types:
        kinds.setdefault(re.sub(r"^blk\.\d+\.|\.weight$", "", name), []).append(name)
    lines = [("tensors", "types", "of the file")]
    for kind, names in sorted(kinds.items(), key=lambda item: -sum(sizes[name] for name in item[1])):
        counts = Counter(types[name] for name in names)
        given = ", ".join(f"{one} x{n}" if len(names) > 1 else one for one, n in counts.most_common())
        lines.append((kind, given, f"{100 * sum(sizes[name] for name in names) / total:.0f}%"))
    return table(lines, indent="  ")


def _object(made: QuantizedModel) -> dict[str, Any]:
    compared = made.rival and dict(zip(("level", "size", "loss"), made.rival, strict=True))
    return {
        "path": str(made.path),
        "name": made.name,
        "level": made.level,
        "size": made.size,
        "source_size": made.source_size,
        "loss": made.loss,
        "types": dict(made.types),
        "compared": compared,
    }
