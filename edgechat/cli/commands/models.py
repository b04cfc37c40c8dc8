"""`edgechat list`, `rm`, `import` and `verify`: models on this machine; `list` also shows remote ones.

With --json, a list of objects is printed, most recently used first:

    kind             "model"; or "adapter" for LoRA adapters, which come last and have name, format ("gguf"
                     or "peft"), base (the model that it is for), architecture, rank, size, place, path and
                     damage
    name, full_name  the names that commands accept; other_names: any others that Ollama has for the file
    model            its name in the catalogue, or null
    format           "gguf" or "mlx"
    quant, architecture, parameters, size (bytes), context (the length it was trained for, in tokens)
    last_used        seconds since 1970, or null; loaded: whether a running edgechat has it loaded
    fits             whether it would fit in the RAM that is free now, without a GPU
    fits_context     the longest context with which it would fit, in tokens, at most 32768; 0 if it cannot fit
    place            "edgechat", "own folder", "hub cache", "LM Studio", "llama.cpp" or "Ollama"
    path, files      the file or folder to load, and all files
    vision, audio    whether it can see or hear with the projector stored next to it
    projector        the path of that file, or null; no_vision: why it cannot be used, or null
    mtp              whether it can draft with its own layers (MTP)
    damage           why it cannot be loaded, or null
    can_import       whether `edgechat import` can make a copy of it that loads
    remote           null; for a model on another server {"server", "kind", "url", "ttft_ms", "decode_tps"},
                     the last two as measured here, or null. Remote models come after local ones. Keys that
                     apply only to files are null, false or an empty list
"""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from edgechat import settings
from edgechat.base.text import ago, figure, flat, mebibytes, one_line
from edgechat.cli import completion
from edgechat.cli.declaring import argument, command, option
from edgechat.cli.options import json_option
from edgechat.cli.terminal_io import StatusLine, confirm, note, print_json, table
from edgechat.models.adapters.local import (
    AdapterDetails,
    LocalAdapter,
    check_adapter,
    known_adapter,
    local_adapters,
)
from edgechat.models.formats.header import Modality
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models, local_models
from edgechat.models.remote.model import KINDS
from edgechat.planner.listing import ModelRow, rows
from edgechat.settings import RemoteServer

if TYPE_CHECKING:
    from edgechat.models.local.upkeep import Verification
    from edgechat.models.remote.listing import RemoteRow

_HEADINGS = ("NAME", "QUANT", "SIZE", "CONTEXT", "LAST USED", "FITS NOW", "WHERE")
_REMOTE_HEADINGS = ("REMOTE", "SERVER", "CONTEXT", "FIRST TOKEN", "SPEED", "LAST USED")
_INPUT, _DRAFTS = "INPUT", "DRAFTS"
"""Optional last columns, shown if a model accepts more than text, or can draft with its own layers."""
_INPUTS: dict[Modality, str] = {"vision": "images", "audio": "sound"}

model_name = argument(
    "model",
    metavar="MODEL",
    help="A name shown by `edgechat list`, or a path.",
    complete=completion.local_models,
)


@command("list", offline=True)
@json_option
def list_models(json: bool) -> None:
    """List the models on this machine, whichever tool downloaded them, and whether they fit now."""
    with StatusLine(sys.stderr) as status, _asking(settings.load().remotes) as answers:
        known = inventory()
        models = rows(lambda name: status.show(f"reading the header of {name}"), known=known)
        adapters = [(adapter, adapter.details()) for adapter in local_adapters(known)]
        remote_models, problems = answers()
    if json:
        here = [*map(_object, models), *(adapter_object(*one) for one in adapters)]
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
        print(table([_ADAPTER_HEADINGS, *(tuple(map(flat, _adapter_cells(*one))) for one in adapters)]))


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
    """Query the servers in the background, and yield a function that waits for their answers."""
    if not remotes:
        yield lambda: ((), ())
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(_remote_rows, remotes).result


def _remote_rows(remotes: Mapping[str, RemoteServer]) -> tuple[Sequence[RemoteRow], Sequence[str]]:
    """Return the models on all servers, and an error message for each server that failed."""
    import asyncio

    from edgechat.models.remote.listing import listings, rows_of  # takes 50 ms

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


_HOW = {
    "cloned": "It shares disk space with your file until one of the two is changed.",
    "linked": "It is a hard link to your file, and takes no extra space.",
    "copied": "It is a copy; your file is no longer needed.",
    "moved": "The file was moved.",
    "joined": "Its parts were joined; they are no longer needed.",
    "text": "It is a copy of the text model alone, without the vision tower, so it cannot see images.",
}


@command("rm", offline=True)
@model_name
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(model: str, yes: bool) -> None:
    """Remove a model from edgechat's folder or the hub's cache; models of other tools are left to them."""
    from edgechat.models.adapters.peft import conversions
    from edgechat.models.local.upkeep import removal, single_model

    found = known_adapter(model) or single_model(model)
    plan = removal(found, conversions(found.path))
    print(f"{flat(found.name)}, in {found.place.value}:")
    for path in plan.files:
        print(f"  {flat(str(path))}")
    if plan.frees:
        print(f"Removing it frees {mebibytes(plan.frees)}.")
    else:
        print("Removing it frees no space: the same data is linked elsewhere.")
    if not yes:
        confirm("Remove it?", "Nothing was removed", "Add --yes to remove it.")
    plan.run()
    print(f"Removed. {mebibytes(plan.frees)} freed." if plan.frees else "Removed.")


@command("import", offline=True)
@argument(
    "file", metavar="FILE", help="A GGUF file (any shard of a split model), or the folder of an MLX model."
)
@option("--name", help="The model's name; default: the name of its file or folder.")
@option("--move", is_flag=True, help="Move the files instead of copying or linking them.")
def import_file(file: str, name: str | None, move: bool) -> None:
    """Add your own model to edgechat's folder, sharing the file's disk space where possible."""
    from edgechat.models.local.importing import import_model

    with StatusLine(sys.stderr) as status:

        def tell(n: int, total: int) -> None:
            status.show(f"copying {100 * n // max(1, total)}% of {mebibytes(total)}, Ctrl+C cancels")

        new = import_model(file, name=name, move=move, on_progress=tell)
    models = local_models(str(new.path))
    imported_name = models[0].name if models else str(new.path)
    print(flat(f"Imported {imported_name}: {new.path}"))
    print(_HOW[new.how])
    print(flat(f"Chat with it: edgechat run {imported_name}"))


@command("verify", epilog="The exit code is 1 if a model is damaged.", offline=True)
@argument(
    "model",
    required=False,
    metavar="MODEL",
    help="A name shown by `edgechat list`, or a path. Default: all models.",
    complete=completion.local_models,
)
def verify_models(model: str | None) -> None:
    """Check that models on disk are undamaged, by their hashes where those are known."""
    adapters = _adapters(model)
    of_adapters = {adapter.path for adapter in adapters}
    models = list(inventory().models) if model is None else [] if adapters else find_models(model)
    models = [*(one for one in models if one.path not in of_adapters), *adapters]
    n_damaged = 0
    for one in models:
        verification = _verified(one, check_adapter if one.path in of_adapters else _check)
        n_damaged += bool(verification.damage)
        print(_verdict(one, verification), flush=True)
    if len(models) > 1:
        what = "models and adapters" if adapters else "models"
        print(f"{len(models)} {what} checked, {n_damaged or 'none'} damaged.")
    raise Exit(int(n_damaged > 0))


def _check(path: Path) -> None:
    """Raise ModelFileError if a model cannot be read. A built-in vision tower is not treated as an error."""
    from edgechat.models.formats.importable import VisionInside
    from edgechat.models.formats.mlx.contents import read_model

    with contextlib.suppress(VisionInside):
        read_model(path)


def _adapters(name: str | None) -> list[LocalAdapter]:
    """Return the adapter with this name, or all adapters if name is None."""
    if name is None:
        return local_adapters()
    adapter = known_adapter(name)
    return [adapter] if adapter is not None else []


def _verified(model: LocalModel, check: Callable[[Path], object]) -> Verification:
    from edgechat.models.local.upkeep import verify

    total = max(1, sum(file.size for file in model.found.all_files))
    with StatusLine(sys.stderr) as status:

        def tell(n: int) -> None:
            status.show(f"reading {model.name}: {100 * n // total}% of {mebibytes(total)}")

        return verify(model, tell, check=check)


def _verdict(model: LocalModel, verification: Verification) -> str:
    if verification.damage:
        return f"DAMAGED  {flat(model.name)}: {flat(verification.damage)}\n         {flat(_remedy(model))}"
    how = "hashes match" if verification.hashed else "header and size are valid; no hash is known"
    projector = model.found.projector
    beside = f", with its projector {mebibytes(projector.size)}" if projector is not None else ""
    return f"ok       {flat(model.name)}: {mebibytes(model.size)}{beside}, {how}"


def _remedy(model: LocalModel) -> str:
    name = shlex.quote(one_line(model.name))
    match model.place:
        case Place.SHIPPED:
            return "Reinstall edgechat."
        case Place.HUB:
            source = model.entry.name if model.entry else model.found.repo
            backend = " --backend mlx" if model.entry and model.found.format == "mlx" else ""
            return f"To download it again: edgechat rm {name} && edgechat pull {source}{backend}"
        case Place.OLLAMA:
            tag = model.found.tags[0]
            return f"To download it again: ollama rm {tag} && ollama pull {tag}"
        case Place.LM_STUDIO:
            return "Remove it in LM Studio (My Models) and download it there again."
        case Place.OWN:
            return f"Remove it (edgechat rm {name}) and import another copy."
    return f"Get another copy of {one_line(str(model.path), 500)}"


# LoRA adapters, which `show` and `pull` display as well.


_ADAPTER_HEADINGS = ("ADAPTER", "RANK", "SIZE", "FOR", "WHERE")


def _adapter_cells(adapter: LocalAdapter, details: AdapterDetails) -> tuple[str, ...]:
    """Return the table row for an adapter, with the columns in _ADAPTER_HEADINGS."""
    rank = str(details.rank or "?")
    return (
        adapter.name,
        rank,
        mebibytes(adapter.size),
        "damaged" if details.damage else details.base or details.architecture or "?",
        adapter.place.value,
    )


def adapter_rows(adapter: LocalAdapter, details: AdapterDetails) -> Iterator[tuple[str, str]]:
    """Yield (label, text) rows that describe an adapter."""
    names = ", or ".join(map(flat, (adapter.name, *adapter.other_names[:1])))
    name = adapter.path if adapter.place is Place.ELSEWHERE else adapter.name
    yield "", f"A LoRA adapter, to be applied to its model: edgechat run MODEL --lora {flat(str(name))}"
    yield "Name", names
    yield "For", flat(details.base) or "a model that it does not name"
    if details.architecture:
        yield "Architecture", flat(details.architecture)
    yield "Rank", str(details.rank or "unknown")
    if details.obstacle:
        yield "Format", flat(f"PEFT; cannot be converted to GGUF: {details.obstacle}")
    else:
        yield "Format", "PEFT; converted to GGUF at its first use" if adapter.path.is_dir() else "GGUF"
    yield "Where", flat(adapter.place.value)
    yield "Files", f"{mebibytes(adapter.size)}\n  {flat(str(adapter.path))}"
    if details.damage:
        yield "Damaged", flat(details.damage)


def adapter_object(adapter: LocalAdapter, details: AdapterDetails) -> dict[str, Any]:
    """Return an adapter in the form that --json prints."""
    return {
        "kind": "adapter",
        "name": adapter.name,
        "format": adapter.found.format,
        "base": details.base or None,
        "architecture": details.architecture or None,
        "rank": details.rank or None,
        "size": adapter.size,
        "place": adapter.place.value,
        "path": str(adapter.path),
        "damage": details.damage or None,
    }
