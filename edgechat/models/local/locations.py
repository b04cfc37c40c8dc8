"""Folders with models on this machine: edgechat's own, the hub's cache, and those of other tools.

Each folder is located by its tool's own rules, without importing the tool. Any of these folders may be
missing.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from edgechat.base import paths

_MAX_POINTER = 4096
_MAX_SETTINGS = 1 << 20
_DOWNLOADS = re.compile(r'^XDG_DOWNLOAD_DIR="(?:\$HOME/)?([^"$]*)"', re.MULTILINE)


class Place(Enum):
    """The tool or folder that a model belongs to. The value is shown to users."""

    SHIPPED = "edgechat"
    OWN = "own folder"
    HUB = "hub cache"
    LM_STUDIO = "LM Studio"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "Ollama"
    ELSEWHERE = "elsewhere"


def own_folder() -> Path:
    """Return edgechat's own models folder, which may not exist. Raises FolderError."""
    return paths.data_dir() / "models"


def hub_cache() -> Path:
    """Return the huggingface_hub cache folder, located by that library's own rules.

    Importing the library would take a quarter of a second. llama.cpp also downloads into this folder.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(os.path.expanduser(folder or os.path.join(home, "hub"))))


def llama_cpp_folder() -> Path:
    """Return the folder in which llama.cpp stored downloads before it switched to the hub's cache."""
    folder = os.environ.get("LLAMA_CACHE")
    if folder:
        return Path(folder)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local").expanduser() / "llama.cpp"
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "llama.cpp"
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "llama.cpp"


def lm_studio_folders() -> list[Path]:
    """Return the folders in which LM Studio may store models: the configured one and the default ones.

    LM Studio's home folder is the one specified in ~/.lmstudio-home-pointer, or else one of two defaults. Its
    settings may specify another folder for models.
    """
    home = _home()
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    pointed = _read_text(home / ".lmstudio-home-pointer", _MAX_POINTER).strip()
    if _is_path(pointed):
        homes.insert(0, Path(pointed))
    folders = [
        folder
        for studio_home in homes
        for folder in (*_downloads_folders(studio_home / "settings.json"), studio_home / "models")
    ]
    return list(dict.fromkeys(folders))


def ollama_folders() -> list[Path]:
    """Return the folders in which Ollama may store models.

    This is OLLAMA_MODELS, or else the user's folder and the system service's folders.
    """
    configured = os.environ.get("OLLAMA_MODELS")
    if configured:
        return [Path(configured).expanduser()]
    folders = [_home() / ".ollama" / "models"]
    if sys.platform.startswith("linux"):
        folders += [Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama")]
    return folders


def downloads_folder() -> Path:
    """Return the folder in which browsers store downloads. Its name on Linux depends on the language."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config")
    named = _DOWNLOADS.search(_read_text(config / "user-dirs.dirs", _MAX_SETTINGS))
    return _home() / (named[1] if named else "Downloads")


def _downloads_folders(settings: Path) -> Iterator[Path]:
    """Yield the models folder specified in LM Studio's settings, if any."""
    try:
        table = json.loads(_read_text(settings, _MAX_SETTINGS) or "{}")
    except (ValueError, RecursionError):
        return
    folder = table.get("downloadsFolder") if isinstance(table, dict) else None
    if isinstance(folder, str) and _is_path(folder):
        yield Path(folder)


def _is_path(text: str) -> bool:
    return text.isprintable() and os.path.isabs(text)


def _read_text(path: Path, most: int) -> str:
    """Return the text of a small file, or '' if it cannot be read."""
    try:
        if not path.is_file():
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""


def _home() -> Path:
    return Path(os.path.expanduser("~"))
