"""`edgechat quantize`: make a smaller model file of one in 16 or 32 bits.

With --json, one object is printed:

    path, name, level, size, source_size, loss (in nats; null where it was not measured)
    types     of each quantized tensor
    compared  level, size and loss of the plain quantization that the mixture was compared with, or null
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgechat.base.errors import BadRequest
from edgechat.base.text import figure, flat, mebibytes, one_line
from edgechat.cli.output.layout import sheet, styled, table
from edgechat.cli.output.quantities import amount
from edgechat.cli.output.status import StatusLine
from edgechat.cli.quantize.levels import level_named
from edgechat.cli.quantize.making import (
    QuantizedModel,
    QuantizeRequest,
    Source,
    is_matrix,
    level_types,
    make,
    sizes_of,
)
from edgechat.cli.terminal_io import print_json
from edgechat.models.formats.quants import GgmlType
from edgechat.planner.candidates import of_path
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.machine import Machine, current_profile
from edgechat.planner.placement.plan_model import plan_variant
from edgechat.planner.request import PlanRequest

_SMALLEST = "Q2_K"


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """The options as they were typed."""

    quant: str | None
    fit: str | None
    loss: float | None
    context: int | None
    imatrix: str | None
    save_imatrix: Path | None
    name: str | None
    keep_split: bool
    threads: int | None


def run(model: str, options: QuantizeOptions, *, dry_run: bool, json: bool) -> None:
    """Run the command. Raises EdgechatError."""
    level = level_named(options.quant) if options.quant is not None else None
    n_bytes = None if options.fit in (None, "auto") else amount("--fit", options.fit)
    if options.imatrix and not Path(options.imatrix).is_file():
        raise BadRequest(f"{one_line(options.imatrix)} is not a file.", hint="Check the path, or use auto.")
    if options.save_imatrix is not None and is_matrix(options.imatrix):
        raise BadRequest(
            f"{one_line(str(options.imatrix))} is an importance matrix already, so there is none to save.",
            hint="Omit --save-imatrix, or give a text: --imatrix TEXT",
        )
    if options.save_imatrix is not None and not options.save_imatrix.absolute().parent.is_dir():
        raise BadRequest(f"There is no folder {one_line(str(options.save_imatrix.parent))}.")
    source = Source(model)
    with StatusLine(sys.stderr) as status:
        if options.fit == "auto":
            status.show("inspecting this machine")
            n_bytes = affordable(source, options.context)
        for warning in _warnings(source, n_bytes):
            status.clear()
            print(flat(f"Warning: {warning}"), file=sys.stderr)
        if level is not None and dry_run:
            _print_dry_run(source, level, has_importance=options.imatrix is not None, json=json)
            return
        request = QuantizeRequest(
            model=model,
            level=level,
            n_bytes=n_bytes,
            loss=options.loss,
            imatrix=options.imatrix,
            save_imatrix=options.save_imatrix,
            name=options.name,
            keep_split=options.keep_split,
            threads=options.threads,
        )
        made = make(source, request, status.show)
    if made is None:
        print(f"Importance matrix written to {flat(str(options.save_imatrix))}")
    elif json:
        print_json(_object(made))
    else:
        print(sheet(_rows(made), bold=styled(sys.stdout), width=13))


def affordable(source: Source, context: int | None) -> int:
    """Return the largest file that fits this machine with that context. Raises DoesNotFit."""
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
    """Yield why another source, or none of this, would be better. n_bytes: the size that was asked for."""
    name, size = source.path.name, source.header.file_size
    if source.is_quantized:
        yield (
            f"{name} is quantized already ({source.header.quant or 'mixed'}), and what it has lost stays "
            "lost. A file in F16 or BF16 gives a better result."
        )
    if n_bytes is not None and size <= n_bytes:
        yield f"{name} itself takes only {mebibytes(size)}, so that it could stay as it is."


def _print_dry_run(source: Source, level: str, *, has_importance: bool, json: bool) -> None:
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
        same = "No mixture was found to be better, so it was taken." if loss == made.loss else ""
        yield "", f"{level} with the same importance matrix, {mebibytes(size)}: {figure(loss)} nats. {same}"
    yield "", ""
    yield "Types", _types_table(made.types, made.sizes)
    yield "", ""
    yield "Chat", f"edgechat run {made.name}"


def _types_table(types: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """Return what was given to the tensors of each kind."""
    total = max(1, sum(sizes.values()))
    kinds: dict[str, list[str]] = {}
    for name in types:
        kinds.setdefault(re.sub(r"^blk\.\d+\.|\.weight$", "", name), []).append(name)
    lines = [("tensors", "types", "of the file")]
    for kind, names in sorted(kinds.items(), key=lambda item: -sum(sizes[name] for name in item[1])):
        counts = Counter(types[name] for name in names)
        given = ", ".join(f"{one} x{n}" if len(names) > 1 else one for one, n in counts.most_common())
        lines.append((kind, given, f"{100 * sum(sizes[name] for name in names) / total:.0f}%"))
    return "\n".join(f"  {line}" for line in table(lines).splitlines())


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
