"""The server's key: made on its first start, and kept where only its owner can read it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import filelock

from edgechat.base import paths
from edgechat.base.errors import SettingsError

_KEY = re.compile(r"[\x21-\x7e]{8,512}")
_LINE = 4096
_LOCK_SECONDS = 10.0
VARIABLE = "EDGECHAT_API_KEY"


@dataclass(frozen=True, slots=True)
class Key:
    """A key, and where it comes from."""

    text: str
    file: Path | None = None
    """Where it is kept; None: it was given, and is not kept."""
    is_new: bool = False
    variable: str | None = None
    """The environment's variable that it was given in; None: it was not."""


def key_file() -> Path:
    """Return where the key is kept."""
    return paths.config_dir() / "api-key"


def find_key(given: str | None) -> Key:
    """Return the key that was given on the command line or in EDGECHAT_API_KEY, else ours, made if need be.

    Raises SettingsError for one that no header can carry, FolderError.
    """
    other = "Use another key, or omit it: edgechat then generates one."
    if given is not None:
        return Key(_checked(given, "The given API key", other))
    if VARIABLE in os.environ:
        return Key(_checked(os.environ[VARIABLE], f"The API key in {VARIABLE}", other), variable=VARIABLE)
    file = key_file()
    try:
        return _kept(file)
    except FileNotFoundError:
        pass
    try:
        with filelock.FileLock(file.with_name(".api-key.lock"), timeout=_LOCK_SECONDS, mode=0o600):
            with contextlib.suppress(FileNotFoundError):  # another server may have made it meanwhile
                return _kept(file)
            made = f"ek-{secrets.token_urlsafe(32)}"
            paths.replace(file, f"{made}\n".encode())
    except OSError as error:
        raise SettingsError(
            f"A key cannot be written to {file}: {error.strerror or error}.",
            hint=f"Check the free disk space and the permissions of {file.parent}.",
        ) from error
    return Key(made, file, is_new=True)


def _kept(file: Path) -> Key:
    """Return the key in the file. Raises FileNotFoundError, for an empty one, too, and SettingsError."""
    try:
        text = paths.read_bytes(file, _LINE).decode("utf-8", "replace").strip()
        if not text and not file.is_symlink():  # a kill or a full disk has left it so
            raise FileNotFoundError
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not file.is_symlink():
            raise
        raise SettingsError(
            f"The key in {file} cannot be read: {error.strerror or error}.",
            hint="Correct or remove the file.",
        ) from error
    with contextlib.suppress(OSError):  # a copy of the folder may have let others read it
        file.chmod(0o600)
    return Key(
        _checked(text, f"The key in {file}", "Delete the file; the next start generates a new key."), file
    )


def _checked(text: str, what: str, hint: str) -> str:
    if _KEY.fullmatch(text) is None:
        raise SettingsError(
            f"{what} is not valid: keys have 8 to 512 letters, digits and punctuation characters, without "
            "spaces.",
            hint=hint,
        )
    return text
