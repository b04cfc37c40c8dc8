"""Command lines, pipes and environments for child processes, in a checkout and in the packaged program.

A child communicates over its stdin and stdout, which it replaces at once (`adopt_pipe`). File descriptor 1
then points to the log, so output from native code reaches neither the pipe nor the terminal. There is
nothing here that another user could open, such as a port. End-of-file tells a child that its parent is gone.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, BinaryIO, TextIO

ROLE_FLAG = "--child"
PROGRAM: tuple[str, ...] = ("-m", "edgechat")
"""Python's arguments for starting a child; a program that wraps edgechat's `main` replaces them."""


def frozen() -> bool:
    """Return whether this is the packaged program, which contains Python but not pip."""
    return bool(getattr(sys, "frozen", False))


def command(role: str) -> list[str]:
    """Return the command line that starts a child with this role (see `edgechat.__main__`)."""
    if frozen():
        return [sys.executable, ROLE_FLAG, role]
    # -P: modules in the current folder must not shadow edgechat's.
    return [sys.executable, "-P", *PROGRAM, ROLE_FLAG, role]


def options(log: BinaryIO | TextIO | int) -> dict[str, Any]:
    """Return Popen's options for a child: pipes for stdin and stdout, `log` for stderr.

    The child gets a new session, so that Ctrl+C in the terminal reaches only the front end.
    """
    import subprocess  # 18 ms, not needed by `edgechat --version`

    session: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        session = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, **session}


class _Lossy(io.FileIO):
    """A log file whose write errors are ignored."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def adopt_pipe() -> tuple[BinaryIO, BinaryIO]:
    """In a child: take over stdin and stdout, and return them as (from parent, to parent).

    Stdin is then redirected to the null device, and stdout to the log.
    """
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


# Variables needed to locate a command and its files; none of the user's other variables are passed on.
_NEEDED = ("HOME", "PATH", "TMPDIR")
_NEEDED_ON_WINDOWS = (
    *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROGRAMFILES"),
    *("SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERPROFILE", "WINDIR"),
)


def free_port(port: int = 0) -> int:
    """Return a loopback port for a child: any free one, or `port`. Raises OSError if `port` is taken."""
    import socket  # not needed by `edgechat --version`

    with socket.create_server(("127.0.0.1", port)) as server:
        return int(server.getsockname()[1])


def needed_environment(*more: str) -> dict[str, str]:
    """Return the environment variables that every program gets, plus those named in `more` that are set."""
    needed = _NEEDED_ON_WINDOWS if sys.platform == "win32" else _NEEDED
    return {name: os.environ[name] for name in (*needed, *more) if name in os.environ}
