"""`edgechat import`, `edgechat rm` and `edgechat verify`: the files of the models on this machine."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from edgechat.base.text import flat, mebibytes, one_line
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import confirm
from edgechat.models.adapters.local import LocalAdapter, check_adapter, known_adapter, local_adapters
from edgechat.models.adapters.peft import conversions
from edgechat.models.formats.importable import VisionInside
from edgechat.models.formats.mlx.contents import read_model
from edgechat.models.local.importing import import_model
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models, local_models
from edgechat.models.local.upkeep import Verification, removal, single_model, verify

_HOW = {
    "cloned": "It shares disk space with your file until one of the two is changed.",
    "linked": "It is a hard link to your file, and takes no extra space.",
    "copied": "It is a copy; your file is no longer needed.",
    "moved": "The file was moved.",
    "joined": "Its parts were joined; they are no longer needed.",
    "text": "It is a copy of the text model alone, without the vision tower: it reads no images.",
}


def import_file(file: str, *, name: str | None, move: bool) -> None:
    """Put a model into edgechat's folder. Raises EdgechatError."""
    with StatusLine(sys.stderr) as status:

        def tell(n: int, total: int) -> None:
            status.show(f"copying {100 * n // max(1, total)}% of {mebibytes(total)}, Ctrl+C cancels")

        new = import_model(file, name=name, move=move, on_progress=tell)
    models = local_models(str(new.path))
    imported_name = models[0].name if models else str(new.path)
    print(flat(f"Imported {imported_name}: {new.path}"))
    print(_HOW[new.how])
    print(flat(f"Chat with it: edgechat run {imported_name}"))


def remove(name: str, *, yes: bool) -> None:
    """Remove a model or an adapter that is edgechat's or in the hub's cache, after asking.

    Raises EdgechatError.
    """
    adapter = known_adapter(name)
    model = adapter.model if adapter is not None else single_model(name)
    plan = removal(model, conversions(model.path))
    print(f"{flat(model.name)}, in {model.place.value}:")
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


def verify_models(name: str | None) -> int:
    """Compare models and adapters on the disk with what is known of them; return 1 if one is damaged, else 0.

    None: all. Raises EdgechatError.
    """
    adapters = [adapter.model for adapter in _adapters(name)]
    of_adapters = {adapter.path for adapter in adapters}
    models = list(inventory().models) if name is None else [] if adapters else find_models(name)
    models = [model for model in models if model.path not in of_adapters] + adapters
    n_damaged = 0
    for model in models:
        verification = _verified(model, check_adapter if model.path in of_adapters else _check)
        n_damaged += bool(verification.damage)
        print(_verdict(model, verification), flush=True)
    if len(models) > 1:
        what = "models and adapters" if adapters else "models"
        print(f"{len(models)} {what} checked, {n_damaged or 'none'} damaged.")
    return int(n_damaged > 0)


def _check(path: Path) -> None:
    """Raise ModelFileError unless a model can be read; one with a vision tower inside is as it should be."""
    with contextlib.suppress(VisionInside):
        read_model(path)


def _adapters(name: str | None) -> list[LocalAdapter]:
    """Return all adapters, or the one that a name means."""
    if name is None:
        return local_adapters()
    adapter = known_adapter(name)
    return [adapter] if adapter is not None else []


def _verified(model: LocalModel, check: Callable[[Path], object]) -> Verification:
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
