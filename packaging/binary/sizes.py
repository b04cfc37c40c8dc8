"""The largest parts of a packaged program: `python packaging/binary/sizes.py dist/edgechat-...`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

_SHOWN = 20


def parts(folder: Path) -> Counter[str]:
    """Return the size in bytes of each part: a folder or file in `_internal`, or a file next to it.

    Symlinks are skipped.
    """
    found: Counter[str] = Counter()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            inside = path.relative_to(folder).parts
            found["/".join(inside[:2] if inside[0] == "_internal" else inside[:1])] += path.stat().st_size
    return found


def report(folder: Path) -> str:
    """Return a table of the largest parts and the total, in MB (10^6 bytes)."""
    found = parts(folder)
    rows = [f"{size / 1e6:7.1f}  {name}" for name, size in found.most_common(_SHOWN)]
    rest = sum(found.values()) - sum(size for _, size in found.most_common(_SHOWN))
    rows += [f"{rest / 1e6:7.1f}  in {max(0, len(found) - _SHOWN)} smaller parts"]
    return "\n".join([*rows, f"{sum(found.values()) / 1e6:7.1f}  MB unpacked"])


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
