"""`edgechat list`: the models on this machine, as text or as JSON.

With --json, a list of objects is printed, most recently used first:

    name, full_name  the names that commands accept
    model            its name in the catalogue, or null
    format           "gguf" or "mlx"
    quant, architecture, parameters, size (bytes), context (the tokens it was trained for)
    last_used        seconds since 1970, or null; loaded: whether a running edgechat has it loaded
    fits             whether it would fit into the RAM that is free now, without a GPU
    fits_context     the longest context with which it would fit, in tokens, up to 32768; 0 if none
    place            "edgechat", "own folder", "hub cache", "LM Studio", "llama.cpp" or "Ollama"
    path, files      the file or folder to load, and all files
    damage           why it cannot be loaded, or null
"""

from __future__ import annotations

import sys
import time
from typing import Any

from edgechat.base.text import ago, flat, mebibytes
from edgechat.cli.output.layout import table
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import print_json
from edgechat.planner.listing import ModelRow, rows

_HEADINGS = ("NAME", "QUANT", "SIZE", "CONTEXT", "LAST USED", "FITS NOW", "WHERE")


def run(*, json: bool) -> None:
    """Run the command."""
    with StatusLine(sys.stderr) as status:
        models = rows(lambda name: status.show(f"reading the header of {name}"))
    if json:
        print_json([_object(row) for row in models])
    else:
        print(table([_HEADINGS, *(tuple(map(flat, _cells(row))) for row in models)]))


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


def _object(row: ModelRow) -> dict[str, Any]:
    model, glance = row.model, row.glance
    return {
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
        "damage": glance.damage or None,
    }
