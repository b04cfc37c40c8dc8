"""Starting child processes, from a checkout and from the packaged program.

A child speaks over its own stdin and stdout, which it takes away at once (`adopt_pipe`): file descriptor 1
then points at the log, so nothing that native code prints can reach the pipe or the terminal. There is no
port, and nothing that another user could open. A child that reads end-of-file has lost its parent.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, BinaryIO, TextIO

ROLE_FLAG = "--child"
PROGRAM: tuple[str, ...] = ("-m", "edgechat")
"""What Python runs as a child; a program around edgechat's `main` sets itself here."""


def frozen() -> bool:
    """Return whether this is the packaged program, which has its own Python and no pip."""
    return bool(getattr(sys, "frozen", False))


def command(role: str) -> list[str]:
    """Return the command line that starts a child with this role (see `edgechat.__main__`)."""
    if frozen():
        return [sys.executable, ROLE_FLAG, role]
    # -P: the folder the user stands in must not shadow our modules.
    return [sys.executable, "-P", *PROGRAM, ROLE_FLAG, role]


def options(log: BinaryIO | TextIO | int) -> dict[str, Any]:
    """Return Popen's options for a child: pipes for stdin and stdout, `log` for stderr.

    The child gets a session of its own, so that Ctrl+C in the terminal reaches only the front end.
    """
    import subprocess  # 18 ms, which `edgechat --version` need not pay

    apart: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, **apart}


class _Lossy(io.FileIO):
    """A log file whose write errors are ignored."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def adopt_pipe() -> tuple[BinaryIO, BinaryIO]:
    """In a child: return (from parent, to parent) and point stdin at nothing, stdout at the log."""
    log = _Lossy(2, "wb", closefd=False)
    sys.stderr = io.TextIOWrapper(log, "utf-8", "backslashreplace", write_through=True)
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(incoming, os.O_BINARY)
        msvcrt.setmode(outgoing, os.O_BINARY)
    return os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb", buffering=0)
