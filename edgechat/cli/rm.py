"""`edgechat rm`: remove a model that is edgechat's or in the hub's cache, after asking."""

from __future__ import annotations

from edgechat.cli.edge import refused
from edgechat.errors import NotRemovable
from edgechat.models.inventory import LocalModel
from edgechat.models.library import located
from edgechat.models.removal import Removal, removal
from edgechat.text import mebibytes, one_line, printable


def run(name: str, *, yes: bool) -> int:
    """Run the command; return the exit code: 1 where nothing was removed. Raises EdgechatError."""
    one = _one(name)
    found = removal(one)
    print(_words(one, found))
    if not yes:
        refusal = refused("Remove it?", "Nothing was removed", "Add --yes to remove it.")
        if refusal is not None:
            return refusal
    found.run()
    print(f"Removed. {mebibytes(found.frees)} are free again." if found.frees else "Removed.")
    return 0


def _one(name: str) -> LocalModel:
    """Return the model that is meant. Raises NotRemovable where a name means several."""
    found = located(name)
    if len(found) > 1:
        names = ", ".join(one_line(one.name) for one in found)
        raise NotRemovable(f"{one_line(name)} is here several times: {names}.", hint="Name one of them.")
    return found[0]


def _words(one: LocalModel, found: Removal) -> str:
    lines = [f"{one.name}, in {one.place.value}:", *(f"  {path}" for path in found.files)]
    if found.frees:
        lines.append(f"Removing it frees {mebibytes(found.frees)}.")
    else:
        lines.append("Removing it frees nothing: the same bytes have another name elsewhere.")
    return printable("\n".join(lines))
