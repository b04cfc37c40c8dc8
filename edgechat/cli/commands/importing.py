"""`edgechat import`: put a model of the user's into edgechat's folder."""

from __future__ import annotations

import sys

from edgechat.base.text import flat, mebibytes
from edgechat.cli.output.status import StatusLine
from edgechat.models.local.importing import import_model
from edgechat.models.local.resolve import local_models

_HOW = {
    "cloned": "It shares disk space with your file until one of the two is changed.",
    "linked": "It is a hard link to your file, and takes no extra space.",
    "copied": "It is a copy; your file is no longer needed.",
    "moved": "The file was moved.",
}


def run(file: str, *, name: str | None, move: bool) -> int:
    """Run the command; return the exit code. Raises EdgechatError."""
    status = StatusLine(sys.stderr)
    try:
        found = import_model(
            file,
            name=name,
            move=move,
            on_progress=lambda n, total: status.show(
                f"copying {100 * n // max(1, total)}% of {mebibytes(total)}, Ctrl+C cancels"
            ),
        )
    finally:
        status.clear()
    known = local_models(str(found.path))
    called = known[0].name if known else str(found.path)
    print(flat(f"Imported {called}: {found.path}"))
    print(_HOW[found.how])
    print(flat(f"Chat with it: edgechat run {called}"))
    return 0
