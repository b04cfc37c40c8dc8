"""`edgechat rm`: remove a model that is edgechat's or in the hub's cache, after asking."""

from __future__ import annotations

from edgechat.base.text import flat, mebibytes
from edgechat.cli.terminal_io import refused
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.removal import Removal, removal, single_model


def run(name: str, *, yes: bool) -> int:
    """Run the command; return the exit code: 1 where nothing was removed. Raises EdgechatError."""
    one = single_model(name)
    found = removal(one)
    print(_words(one, found))
    if not yes:
        refusal = refused("Remove it?", "Nothing was removed", "Add --yes to remove it.")
        if refusal is not None:
            return refusal
    found.run()
    print(f"Removed. {mebibytes(found.frees)} freed." if found.frees else "Removed.")
    return 0


def _words(one: LocalModel, found: Removal) -> str:
    lines = [f"{flat(one.name)}, in {one.place.value}:", *(f"  {flat(str(path))}" for path in found.files)]
    if found.frees:
        lines.append(f"Removing it frees {mebibytes(found.frees)}.")
    else:
        lines.append("Removing it frees no space: the same data is linked elsewhere.")
    return "\n".join(lines)
