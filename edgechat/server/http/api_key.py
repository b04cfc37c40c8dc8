"""The server's key: made on its first start, and kept where only its owner can read it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import SettingsError

_KEY = re.compile(r"[\x21-\x7e]{8,512}")
_LINE = 4096
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
    made = f"ek-{secrets.token_urlsafe(32)}"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another server has made it meanwhile
        return _kept(file)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{made}\n")
    return Key(made, file, is_new=True)


def _kept(file: Path) -> Key:
    try:
        text = paths.read_bytes(file, _LINE).decode("utf-8", "replace").strip()
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
