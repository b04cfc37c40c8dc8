"""Print the notes for a release: `python packaging/release/notes.py v0.1.0`.

They are the version's section in CHANGELOG.md. The script also serves as a check before releasing: it exits
with 1 and says why if the tag does not match edgechat's version or the section is missing.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def version(module: str) -> str:
    """Return `__version__` from the text of edgechat/__init__.py, so that nothing has to be installed."""
    found = re.search(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    if found is None:
        raise SystemExit("edgechat/__init__.py gives no __version__.")
    return found.group(1)


def section(changelog: str, version: str) -> str:
    """Return the section '## VERSION' or '## VERSION (DATE)', with each entry on one line.

    Release pages would show the line breaks in the source.
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
    """Check the tag and print the notes."""
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
