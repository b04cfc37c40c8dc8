"""Texts that are sent with a question: the files that it names, and long pastes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import AttachmentError
from edgechat.base.text import one_line

if TYPE_CHECKING:
    from edgechat.chat.records import Attachment

_MOST_BYTES = 4 * 2**20
MOST = 20
"""Maximum number of attachments of a question."""
_MENTION = re.compile(r"(?:^|(?<=\s))@(?:\"([^\"\n]+)\"|(\S+))")
_LONG_LINES, _LONG_TEXT = 15, 2000
_PATH_LENGTH = 4096


def is_long(text: str) -> bool:
    """Return whether a paste is long enough to become an attachment."""
    return text.count("\n") >= _LONG_LINES or len(text) > _LONG_TEXT


def read(path: str) -> Attachment:
    """Return a text file as an attachment. Blocks on the disk. Raises AttachmentError."""
    shown = one_line(path, 120)
    try:
        file = Path(path).expanduser()
        if file.is_dir():
            raise AttachmentError(f"{shown} is a folder.", hint="Choose a file in it.")
        if not file.is_file():
            raise AttachmentError(f"No such file: {shown}.", hint="Tab completes a path after @.")
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise AttachmentError(f"{shown} cannot be read: {why}.", hint="Choose another file.") from error
    if len(data) > _MOST_BYTES:
        limit = f"{_MOST_BYTES // 2**20} MiB"
        raise AttachmentError(
            f"{shown} has more than {limit}, the limit.", hint="Send only the relevant part."
        )
    if b"\0" in data[:8192]:
        raise AttachmentError(f"{shown} is not a text file.", hint="Only text files can be attached.")
    return of_text(file.name, data.decode("utf-8-sig", "replace"))


def of_text(name: str, text: str) -> Attachment:
    """Return a text as an attachment."""
    from edgechat.chat.records import Attachment  # not needed for the first frame

    return Attachment(name, text)


def named_in(text: str, most: int) -> tuple[list[Attachment], list[str]]:
    """Return the files that a text names after an @, so many at most, and the names of missing files.

    Blocks on the disk. Raises AttachmentError.
    """
    paths: list[str] = []
    missing: list[str] = []
    for quoted, word in dict.fromkeys(_MENTION.findall(text)):
        candidates = filter(None, (quoted or word, word.rstrip(".,;:!?)")))
        if path := next(filter(_is_file, candidates), None):
            paths.append(path)
        elif quoted or "/" in word or re.search(r"\w\.\w{1,5}$", word):
            missing.append(quoted or word)
    return [read(path) for path in paths[: max(0, most)]], missing


def may_be_path(text: str) -> bool:
    """Return whether a paste may be a file that was dropped on the terminal."""
    line = text.strip()
    starts = line.startswith(("/", "~", "'/", '"/', "file://"))
    return starts and "\n" not in line and len(line) <= _PATH_LENGTH


def dropped(text: str) -> list[str]:
    """Return the paths in a paste that consists of paths of files only. Looks at the disk."""
    line = text.strip()
    if not may_be_path(line):
        return []
    try:
        words = [line] if _is_file(line) else shlex.split(line)
    except ValueError:
        return []
    paths = [_path_of(word) for word in words[:MOST]]
    return paths if all(path.startswith(("/", "~")) and _is_file(path) for path in paths) else []


def _path_of(word: str) -> str:
    if not word.startswith("file://"):
        return word
    from urllib.parse import unquote, urlparse

    return unquote(urlparse(word).path)


def _is_file(path: str) -> bool:
    try:
        return Path(path).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        return False
