"""`edgechat verify`: read models from the disk and compare them with what is known of them."""

from __future__ import annotations

import shlex
import sys

from edgechat.base.text import flat, mebibytes, one_line
from edgechat.cli.output.status import StatusLine
from edgechat.models.local.inventory import LocalModel, inventory
from edgechat.models.local.locations import Place
from edgechat.models.local.resolve import find_models
from edgechat.models.local.verifying import Verification, verify


def run(name: str | None) -> int:
    """Run the command; return the exit code: 1 where something is damaged. Raises EdgechatError."""
    models = list(inventory().models) if name is None else find_models(name)
    n_damaged = 0
    for one in models:
        found = _verified(one)
        n_damaged += bool(found.damage)
        print(_words(one, found), flush=True)
    if len(models) > 1:
        print(f"{len(models)} models checked, {n_damaged or 'none'} damaged.")
    return int(n_damaged > 0)


def _verified(one: LocalModel) -> Verification:
    status = StatusLine(sys.stderr)
    total = max(1, one.size)

    def tell(n: int) -> None:
        status.show(f"reading {one.name}: {100 * n // total}% of {mebibytes(total)}")

    try:
        return verify(one, tell)
    finally:
        status.clear()


def _words(one: LocalModel, found: Verification) -> str:
    if found.damage:
        return f"DAMAGED  {flat(one.name)}: {flat(found.damage)}\n         {flat(_remedy(one))}"
    how = "hashes match" if found.hashed else "header and size are valid; no hash is known"
    return f"ok       {flat(one.name)}: {mebibytes(one.size)}, {how}"


def _remedy(one: LocalModel) -> str:
    name = shlex.quote(one_line(one.name))
    match one.place:
        case Place.SHIPPED:
            return "Reinstall edgechat."
        case Place.HUB:
            source = one.entry.name if one.entry else one.found.repo
            backend = " --backend mlx" if one.entry and one.found.format == "mlx" else ""
            return f"To download it again: edgechat rm {name} && edgechat pull {source}{backend}"
        case Place.OLLAMA:
            tag = one.found.tags[0]
            return f"To download it again: ollama rm {tag} && ollama pull {tag}"
        case Place.LM_STUDIO:
            return "Remove it in LM Studio (My Models) and download it there again."
        case Place.OWN:
            return f"Remove it (edgechat rm {name}) and import another copy."
    return f"Get another copy of {one_line(str(one.path), 500)}"
