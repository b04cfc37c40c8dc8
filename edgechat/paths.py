"""Where edgechat keeps its files, by the customs of each platform.

Environment variables win: EDGECHAT_HOME moves everything into one folder (a USB stick, a test's own).
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from edgechat.errors import FolderError

_APP = "edgechat"


def _folder(kind: str, default: str, *, write: bool = False) -> Path:
    home = os.environ.get("EDGECHAT_HOME")
    path = Path(home) / kind if home else Path(default)
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise FolderError(
            f"edgechat cannot make its folder {path}: {error.strerror}.",
            hint="Set EDGECHAT_HOME to a folder that you may write to.",
        ) from error
    if not os.access(path, os.R_OK | os.X_OK | (os.W_OK if write else 0)):
        raise FolderError(
            f"edgechat may not {'write to' if write else 'read'} its folder {path}.",
            hint=f"Make it yours, or set EDGECHAT_HOME to another folder: chmod u+rwx '{path}'",
        )
    return path


def config_dir() -> Path:
    """Return the folder of settings.toml and of the user's own models.toml."""
    return _folder("config", platformdirs.user_config_dir(_APP, appauthor=False))


def data_dir() -> Path:
    """Return the folder of the conversations."""
    return _folder("data", platformdirs.user_data_dir(_APP, appauthor=False))


def log_dir() -> Path:
    """Return the folder of the workers' logs."""
    return _folder("log", platformdirs.user_log_dir(_APP, appauthor=False), write=True)


def cache_dir() -> Path:
    """Return the folder of what can be found out again: figures that took a while to measure."""
    return _folder("cache", platformdirs.user_cache_dir(_APP, appauthor=False))


def shipped(name: str) -> Path:
    """Return the path of a file that comes with edgechat: `models.toml`, `guide.gguf`.

    An installed copy has them in `edgechat/data`; a checkout has models.toml at its top.
    """
    package = Path(__file__).parent
    inside = package / "data" / name
    return inside if inside.exists() else package.parent / name
