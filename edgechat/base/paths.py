"""edgechat's folders, in the platform's standard locations or under EDGECHAT_HOME, and safe file access."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import platformdirs

from edgechat.base.errors import FolderError

UNFINISHED = ".part-"
"""Prefix for the names of files that are still being written."""
_APP = "edgechat"
_UNWRITABLE = (errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES)


def _folder(kind: str, default: str, *, write: bool = False) -> Path:
    home = os.environ.get("EDGECHAT_HOME")
    path = Path(home) / kind if home else Path(default)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        if not write and error.errno in _UNWRITABLE and _is_missing(path):
            return path  # a missing folder counts as empty, even on a full or read-only disk
        raise FolderError(
            f"edgechat cannot create its folder {path}: {error.strerror}.",
            hint="Set EDGECHAT_HOME to a folder that you may write to.",
        ) from error
    if not os.access(path, os.R_OK | os.X_OK | (os.W_OK if write else 0)):
        raise FolderError(
            f"edgechat may not {'write to' if write else 'read'} its folder {path}.",
            hint=f"Set EDGECHAT_HOME to another folder, or change the permissions: chmod u+rwx '{path}'",
        )
    return path


def _is_missing(path: Path) -> bool:
    """Return whether a folder definitely does not exist, and is not just hidden by an unreadable parent."""
    parents = (parent for parent in path.parents if parent.is_dir())
    return not os.path.lexists(path) and os.access(next(parents, path), os.X_OK)


def config_dir() -> Path:
    """Return the folder for settings.toml and the user's models.toml.

    On a read-only disk it may be missing, as may the other folders except `log_dir`.
    """
    return _folder("config", platformdirs.user_config_dir(_APP, appauthor=False))


def data_dir() -> Path:
    """Return the folder for conversations, documents and consents."""
    return _folder("data", platformdirs.user_data_dir(_APP, appauthor=False))


def log_dir() -> Path:
    """Return the folder for the workers' logs."""
    return _folder("log", platformdirs.user_log_dir(_APP, appauthor=False), write=True)


def cache_dir() -> Path:
    """Return the folder for results that can be measured or computed again if they are lost."""
    return _folder("cache", platformdirs.user_cache_dir(_APP, appauthor=False))


def read_bytes(path: Path, most: int) -> bytes:
    """Return the contents of a regular file of at most `most` bytes.

    Raises OSError, including for longer files, and for pipes and devices, which might never end. The
    error's `strerror` completes 'cannot be read: ...'.
    """
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(fd)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def private(path: str | Path, flags: int) -> int:
    """Open a file, creating it readable only by its owner. For use as `open(..., opener=private)`."""
    return os.open(path, flags, 0o600)


def replace(path: Path, data: bytes) -> None:
    """Write a file atomically, readable only by its owner. Raises OSError."""
    temporary = path.with_name(f"{UNFINISHED}{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb", opener=private) as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def keep_newest(folder: Path, most: int) -> None:
    """Delete all but the `most` newest files in a folder, as far as possible. Raises OSError."""
    dated: list[tuple[float, str]] = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            dated.append((entry.stat().st_mtime, entry.path))
    for _, path in sorted(dated, reverse=True)[most:]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def shipped(name: str) -> Path:
    """Return the path of a file that ships with edgechat: `models.toml`, `guide.gguf`.

    Installed copies have it in `edgechat/base/data`; a checkout has models.toml at its top level.
    """
    inside = Path(__file__).parent / "data" / name
    return inside if inside.exists() else Path(__file__).parents[2] / name
