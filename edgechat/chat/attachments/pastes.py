"""What a paste may be besides text: a long one is better as an attachment, a path is a file dropped here."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from edgechat.chat.attachments.mentions import path_exists
from edgechat.chat.attachments.reading import MOST

_LONG_LINES, _LONG_TEXT = 15, 2000
_PATH_LENGTH = 4096
_PATH = re.compile(r"""file://|['"]?(/|~|[A-Za-z]:[\\/]|\\\\)""")
"""How one begins, on Windows too, perhaps in quotes."""


def is_long(text: str) -> bool:
    """Return whether a paste is long enough to become an attachment."""
    return text.count("\n") >= _LONG_LINES or len(text) > _LONG_TEXT


def may_be_path(text: str) -> bool:
    """Return whether a paste may be a file that was dropped on the terminal."""
    line = text.strip()
    return bool(_PATH.match(line)) and "\n" not in line and len(line) <= _PATH_LENGTH


def dropped(text: str) -> list[str]:
    """Return the paths in a paste that consists of paths of files only. Looks at the disk."""
    line = text.strip()
    if not may_be_path(line):
        return []
    try:
        words = [line] if path_exists(line) else _words(line)
    except ValueError:
        return []
    paths = [_path_of(word) for word in words[:MOST]]
    is_absolute = all(Path(path).is_absolute() or path.startswith("~") for path in paths)
    return paths if is_absolute and all(map(path_exists, paths)) else []


def _words(line: str) -> list[str]:
    if os.name != "nt":
        return shlex.split(line)
    return [word.strip("'\"") for word in shlex.split(line, posix=False)]  # a backslash escapes nothing


def _path_of(word: str) -> str:
    if not word.startswith("file://"):
        return word
    from urllib.parse import unquote, urlparse

    return unquote(urlparse(word).path)
