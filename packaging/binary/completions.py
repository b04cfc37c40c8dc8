"""Write completion scripts for all shells, using the file name that each shell expects.

    python packaging/binary/completions.py OUT

Their contents are what `edgechat --show-completion` prints.
"""

from __future__ import annotations

import sys
from pathlib import Path

from edgechat.cli import shell_completion


def write_completions(folder: Path) -> list[Path]:
    """Write the scripts to a folder, creating it if necessary; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in shell_completion.SCRIPTS]
    for path in paths:
        path.write_text(shell_completion.script(path.name), encoding="utf-8", newline="\n")
    return paths


def main() -> int:
    """Write the scripts to the folder in argv[1]."""
    if len(sys.argv) != 2:
        print("usage: python packaging/binary/completions.py FOLDER", file=sys.stderr)
        return 2
    for path in write_completions(Path(sys.argv[1])):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
