"""`edgechat list`: the models on this machine, as text or as JSON.

With --json, a list of objects is printed, most recently used first:

    kind             "model"; or "adapter" for LoRA adapters, which come last, and have name, format ("gguf"
                     or "peft"), base (the model that they are for), architecture, rank, size, place, path and
                     damage
    name, full_name  the names that commands accept
    model            its name in the catalogue, or null
    format           "gguf" or "mlx"
    quant, architecture, parameters, size (bytes), context (the tokens it was trained for)
    last_used        seconds since 1970, or null; loaded: whether a running edgechat has it loaded
    fits             whether it would fit into the RAM that is free now, without a GPU
    fits_context     the longest context with which it would fit, in tokens, up to 32768; 0 if none
    place            "edgechat", "own folder", "hub cache", "LM Studio", "llama.cpp" or "Ollama"
    path, files      the file or folder to load, and all files
    vision, audio    whether it sees, or hears, with the projector that is beside it
    projector        the path of that file, or null; no_vision: why it cannot be used, or null
    mtp              whether it can draft with layers of its own (MTP)
    damage           why it cannot be loaded, or null
"""

from __future__ import annotations

import sys
import time
from typing import Any

from edgechat.base.text import ago, flat, mebibytes
from edgechat.cli.output.adapters import HEADINGS, as_object, cells
from edgechat.cli.output.layout import table
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import print_json
from edgechat.models.adapters.local import local_adapters
from edgechat.models.formats.modalities import Modality
from edgechat.planner.listing import ModelRow, rows

_HEADINGS = ("NAME", "QUANT", "SIZE", "CONTEXT", "LAST USED", "FITS NOW", "WHERE")
_INPUT, _DRAFTS = "INPUT", "DRAFTS"
"""The last columns: where any model takes more than text, and where any drafts with layers of its own."""
_INPUTS: dict[Modality, str] = {"vision": "images", "audio": "sound"}


def run(*, json: bool) -> None:
    """Run the command."""
    with StatusLine(sys.stderr) as status:
        models = rows(lambda name: status.show(f"reading the header of {name}"))
        adapters = [(adapter, adapter.details()) for adapter in local_adapters()]
    if json:
        print_json([*map(_object, models), *(as_object(*one) for one in adapters)])
        return
    lines = [_HEADINGS, *(tuple(map(flat, _cells(row))) for row in models)]
    if any(row.glance.modalities for row in models):
        lines = [(*line, cell) for line, cell in zip(lines, [_INPUT, *map(_input, models)], strict=True)]
    if any(row.glance.mtp for row in models):
        own = ["own layers" if row.glance.mtp else "" for row in models]
        lines = [(*line, cell) for line, cell in zip(lines, [_DRAFTS, *own], strict=True)]
    print(table(lines))
    if adapters:
        print()
        print(table([HEADINGS, *(tuple(map(flat, cells(*one))) for one in adapters)]))


def _cells(row: ModelRow) -> tuple[str, ...]:
    used = ""
    if row.use is not None:
        used = "loaded" if row.use.is_loaded else ago(time.time() - row.use.when)
    fits = "damaged" if row.glance.damage else "yes" if row.fits else "no"
    return (
        row.model.name,
        f"{row.quant or '?'}{' MLX' * (row.model.found.format == 'mlx')}",
        mebibytes(row.model.size),
        str(row.glance.context or "?"),
        used,
        fits,
        row.model.place.value,
    )


def _input(row: ModelRow) -> str:
    return ", ".join(("text", *(_INPUTS[name] for name in row.glance.modalities)))


def _object(row: ModelRow) -> dict[str, Any]:
    model, glance = row.model, row.glance
    return {
        "kind": "model",
        "name": model.name,
        "full_name": model.full_name,
        "model": model.entry.name if model.entry else None,
        "format": model.found.format,
        "quant": row.quant,
        "architecture": glance.architecture or None,
        "parameters": glance.n_params or None,
        "size": model.size,
        "context": glance.context or None,
        "last_used": row.use.when if row.use else None,
        "loaded": row.use is not None and row.use.is_loaded,
        "fits": row.fits > 0,
        "fits_context": row.fits,
        "place": model.place.value,
        "path": str(model.path),
        "files": [str(file.path) for file in model.found.files],
        "vision": "vision" in glance.modalities,
        "audio": "audio" in glance.modalities,
        "projector": str(model.found.projector.path) if model.found.projector else None,
        "no_vision": glance.no_vision or None,
        "mtp": glance.mtp,
        "damage": glance.damage or None,
    }
