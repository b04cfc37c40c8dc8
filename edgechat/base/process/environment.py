"""The environment of programs that are not edgechat's: what a command needs, and no secrets."""

from __future__ import annotations

import os
import sys

# What a command needs to be found and to find its own files; nothing else of the user's is passed on.
_NEEDED = ("HOME", "PATH", "TMPDIR")
_NEEDED_ON_WINDOWS = (
    *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROGRAMFILES"),
    *("SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "USERPROFILE", "WINDIR"),
)


def needed_environment(*more: str) -> dict[str, str]:
    """Return the environment variables that every program gets, and `more`, of those that are set."""
    needed = _NEEDED_ON_WINDOWS if sys.platform == "win32" else _NEEDED
    return {name: os.environ[name] for name in (*needed, *more) if name in os.environ}
