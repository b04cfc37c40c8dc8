"""`edgechat list`: the models on this machine and of remote engines, as text or as JSON.

With --json, a list of objects is printed, most recently used first:

    kind             "model"; or "adapter" for LoRA adapters, which come last, and have name, format ("gguf"
                     or "peft"), base (the model that they are for), architecture, rank, size, place, path and
                     damage
    name, full_name  the names that commands accept; other_names: further ones that Ollama has for the file
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
    can_import       whether `edgechat import` makes a copy of it that can be
    remote           null; of a model of another server {"server", "kind", "url", "ttft_ms", "decode_tps"},
                     the last two as measured here, or null. Such a model comes after the local ones, and
                     has null, false or an empty list where only a file would have a value
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgechat import settings
from edgechat.base.text import ago, figure, flat, mebibytes
from edgechat.cli.output.adapters import HEADINGS, as_object, cells
from edgechat.cli.output.layout import table
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import note, print_json
from edgechat.models.adapters.local import AdapterDetails, LocalAdapter, local_adapters
from edgechat.models.formats.header import Modality
from edgechat.models.local.inventory import inventory
from edgechat.models.remote.model import KINDS
from edgechat.planner.listing import ModelRow, rows
from edgechat.settings import RemoteServer

if TYPE_CHECKING:
    from edgechat.models.remote.listing import RemoteRow

_HEADINGS = ("NAME", "QUANT", "SIZE", "CONTEXT", "LAST USED", "FITS NOW", "WHERE")
_REMOTE_HEADINGS = ("REMOTE", "SERVER", "CONTEXT", "FIRST TOKEN", "SPEED", "LAST USED")
_INPUT, _DRAFTS = "INPUT", "DRAFTS"
"""The last columns: where any model takes more than text, and where any drafts with layers of its own."""
_INPUTS: dict[Modality, str] = {"vision": "images", "audio": "sound"}


def run(*, json: bool) -> None:
    """Run the command."""
    with StatusLine(sys.stderr) as status, _asking(settings.load().remotes) as answers:
        known = inventory()
        models = rows(lambda name: status.show(f"reading the header of {name}"), known=known)
        adapters = [(adapter, adapter.details()) for adapter in local_adapters(known)]
        remote_models, problems = answers()
    if json:
        here = [*map(_object, models), *(as_object(*one) for one in adapters)]
        print_json([*here, *map(_remote_object, remote_models)])
    else:
        _print_local(models, adapters)
        if remote_models:
            print("\n" + table([_REMOTE_HEADINGS, *map(_remote_cells, remote_models)]))
    for problem in problems:
        note(problem)


def _print_local(models: Sequence[ModelRow], adapters: Sequence[tuple[LocalAdapter, AdapterDetails]]) -> None:
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
    fits = "yes" if row.fits else "no"
    if row.glance.damage:
        fits = "to import" if row.glance.can_import else "damaged"
    others = f" ({', '.join(row.model.other_tags)})" if row.model.other_tags else ""
    return (
        row.model.name + others,
        f"{row.quant or '?'}{' MLX' * (row.model.found.format == 'mlx')}",
        mebibytes(row.model.size),
        str(row.glance.context or "?"),
        used,
        fits,
        row.model.place.value,
    )


@contextlib.contextmanager
def _asking(
    remotes: Mapping[str, RemoteServer],
) -> Iterator[Callable[[], tuple[Sequence[RemoteRow], Sequence[str]]]]:
    """Ask the servers meanwhile; yield a function that waits for their models."""
    if not remotes:
        yield lambda: ((), ())
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_remote_rows, remotes).result


def _remote_rows(remotes: Mapping[str, RemoteServer]) -> tuple[Sequence[RemoteRow], Sequence[str]]:
    """Return the models of all servers, and why some have told none."""
    import asyncio

    from edgechat.models.remote.listing import listings, rows_of  # 50 ms

    listed = asyncio.run(listings(remotes))
    problems = [one.error for one in listed if one.error is not None]
    return rows_of(listed), [f"{error.message} {error.hint or ''}" for error in problems]


def _remote_cells(row: RemoteRow) -> tuple[str, ...]:
    model, speed = row.model, row.speed
    return (
        flat(model.name),
        KINDS[model.kind],
        str(model.context or "?"),
        f"{speed.ttft_ms:.0f} ms" if speed else "",
        f"{figure(speed.decode_tps)} tok/s" if speed else "",
        ago(time.time() - speed.when) if speed else "",
    )


def _input(row: ModelRow) -> str:
    return ", ".join(("text", *(_INPUTS[name] for name in row.glance.modalities)))


def _object(row: ModelRow) -> dict[str, Any]:
    model, glance = row.model, row.glance
    return {
        "kind": "model",
        "name": model.name,
        "full_name": model.full_name,
        "other_names": list(model.other_tags),
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
        "can_import": glance.can_import,
        "remote": None,
    }


def _remote_object(row: RemoteRow) -> dict[str, Any]:
    model, speed = row.model, row.speed
    unknown = ("model", "format", "quant", "architecture", "size", "path", "projector", "no_vision", "damage")
    return dict.fromkeys(unknown) | {
        "kind": "model",
        "name": model.name,
        "full_name": model.name,
        "other_names": [],
        "parameters": model.n_params or None,
        "context": model.context or None,
        "last_used": speed.when if speed else None,
        "loaded": False,
        "fits": True,
        "fits_context": model.context,
        "place": "remote",
        "files": [],
        "vision": model.sees,
        "audio": model.hears,
        "mtp": False,
        "can_import": False,
        "remote": {
            "server": model.server,
            "kind": model.kind,
            "url": model.url,
            "ttft_ms": speed.ttft_ms if speed else None,
            "decode_tps": speed.decode_tps if speed else None,
        },
    }
