"""The completions of all shells, in files that are called as each shell looks for them.

    python packaging/binary/completions.py OUT

All ask the program by typer's protocol what could follow. typer's own scripts (`edgechat --show-completion`)
do less: bash's cannot complete a name with a colon, zsh's evaluates what is offered and does nothing at the
first Tab when autoloaded, and fish's starts the program twice. PowerShell's is typer's.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from typer.completion import get_completion_script

_SHELLS = Path(__file__).with_name("shells")
_VARIABLE = "_EDGECHAT_COMPLETE"


def write_completions(folder: Path) -> list[Path]:
    """Write the files into a folder, which is made if need be; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / source.name for source in sorted(_SHELLS.iterdir())]
    for path in paths:
        shutil.copyfile(_SHELLS / path.name, path)
    powershell = folder / "edgechat.ps1"
    script = get_completion_script(prog_name="edgechat", complete_var=_VARIABLE, shell="powershell")
    powershell.write_text(f"{script}\n", encoding="utf-8")
    return [*paths, powershell]


def main() -> int:
    """Write the files to the folder argv[1]."""
    if len(sys.argv) != 2:
        print("usage: python packaging/binary/completions.py FOLDER", file=sys.stderr)
        return 2
    for path in write_completions(Path(sys.argv[1])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
