"""Print what a release is announced with: `python packaging/release/notes.py v0.1.0`.

That is CHANGELOG.md's section of the version. It is also the check before a release: it ends with 1, and says
why, if the tag is not edgechat's version or nothing is written about it.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def version(module: str) -> str:
    """Return `__version__` from the text of edgechat/__init__.py; nothing has to be installed for that."""
    found = re.search(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    if found is None:
        raise SystemExit("edgechat/__init__.py gives no __version__.")
    return found.group(1)


def section(changelog: str, version: str) -> str:
    """Return what stands under '## VERSION', or '## VERSION (DATE)', each entry in one line.

    The page of a release breaks lines where the text does.
    """
    heading = rf"^## {re.escape(version)}(?: \([0-9-]+\))?$"
    parts = re.split(heading, changelog, maxsplit=1, flags=re.MULTILINE)
    text = re.split(r"^## ", parts[1], maxsplit=1, flags=re.MULTILINE)[0].strip() if len(parts) == 2 else ""
    if not text:
        raise SystemExit(
            f"CHANGELOG.md has nothing under '## {version}': rename 'Unreleased' to '{version} (DATE)'."
        )
    return re.sub(r"\n {2}(?=\S)(?!- )", " ", text)


def main() -> None:
    """Check, and print."""
    parser = argparse.ArgumentParser(description="Print the notes of a release.")
    parser.add_argument("tag", help="v and the version")
    tag = parser.parse_args().tag
    ours = version((ROOT / "edgechat" / "__init__.py").read_text(encoding="utf-8"))
    if tag != f"v{ours}":
        raise SystemExit(
            f"The tag is {tag}, and edgechat/__init__.py says {ours}: tag v{ours}, or raise __version__."
        )
    print(section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), ours))


if __name__ == "__main__":
    main()
