"""The files that complete a path: those of the folder it leads to, and those below the working folder.

All of it reads the disk: not for the event loop.
"""

from __future__ import annotations

import heapq
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgechat.base.text import is_text, one_line
from edgechat.chat.commands import commands_of, parse_command
from edgechat.tui.chat.prompt.completions import Suggestion

_MOST_IN_FOLDER = 500
_MOST_BELOW, _SECONDS = 20_000, 1.0
_MOST_FOUND = 50
_FRESH = 10.0
"""Seconds until the working folder is read again."""
_PATH = re.compile(r"(?:^|(?<=\s))@(\S*)$")
_FILE_COMMANDS = {command.name for command in commands_of("app") if command.argument == "FILE"}
_FOLDER_COMMANDS = {command.name for command in commands_of("app") if "FOLDER" in command.argument}
"""Whose argument may be something else, too: it is a path once it looks like one."""

Rank = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True)
class TypedPath:
    """A path that is being typed: after an @, or as the argument of a command."""

    path: str
    start: int
    """The position in the text from which on it is replaced; that of the @ if there is one."""
    after_at: bool
    folders_only: bool = False

    def suggestion(self, path: str, label: str) -> Suggestion:
        """Return a path as a suggestion; that of a folder ends with a slash."""
        is_folder = path.endswith("/")
        label = one_line(label, 60)
        if not self.after_at:
            return Suggestion(path, self.start, label, more=is_folder)
        text = f"@{path}" if is_folder else f'@"{path}" ' if " " in path else f"@{path} "
        return Suggestion(text, self.start, label, more=is_folder)


def path_at_end(before: str) -> TypedPath | None:
    """Return the path that is being typed at the end of a text."""
    command = parse_command(before)
    if command is not None:
        name, typed = command
        argument = re.match(r"/\S+\s+", before)
        is_folder = name in _FOLDER_COMMANDS and (typed.startswith(("~", ".")) or "/" in typed)
        if argument is None or not (is_folder or name in _FILE_COMMANDS):
            return None
        return TypedPath(before[argument.end() :], argument.end(), after_at=False, folders_only=is_folder)
    match = _PATH.search(before)
    return TypedPath(match[1], match.start(), after_at=True) if match else None


class FileFinder:
    """Finds files and folders by some letters of their paths."""

    def __init__(self) -> None:
        self._below: list[tuple[str, str]] = []
        """What is below the working folder: each path, and the same in lower case."""
        self._read_at = -_FRESH
        self._reading = threading.Lock()

    def suggestions(self, typed: TypedPath) -> list[Suggestion]:
        """Return what may be meant by a path: what begins so, then what has its letters anywhere.

        Nothing if it is complete.
        """
        beginning = dict(_in_folder(typed.path))
        if typed.path in beginning and not typed.path.endswith("/"):
            return []
        others = [path for path in self._find(typed.path) if path not in beginning and path != typed.path]
        paths = [*beginning.items(), *((path, path) for path in others)]
        return [
            typed.suggestion(path, label)
            for path, label in paths
            if path.endswith("/") or not typed.folders_only
        ]

    def _find(self, typed: str) -> list[str]:
        if not typed or typed[0] in "./~" or typed.endswith("/"):
            return []
        query = typed.lower()
        ranks = (rank(query, path, lower) for path, lower in self._paths())
        return [path for *_, path in heapq.nsmallest(_MOST_FOUND, filter(None, ranks))]

    def _paths(self) -> list[tuple[str, str]]:
        from edgechat.base.folders import walk  # not needed for the first frame

        with self._reading:
            if time.monotonic() - self._read_at >= _FRESH:
                try:
                    paths = walk(Path.cwd(), most=_MOST_BELOW, seconds=_SECONDS).paths
                except OSError:
                    paths = []
                self._below = [(path, path.lower()) for path in paths]
                self._read_at = time.monotonic()
        return self._below


def rank(query: str, path: str, lower: str) -> Rank | None:
    """Return how well letters match a path, the smallest being the best; None if they do not.

    First come names that begin with the letters, then names and paths that contain them, then those that have
    them in this order: the closer together they are, the better. query, lower: in lower case.
    """
    name = lower.rstrip("/").rpartition("/")[2]
    if query in name:
        return (not name.startswith(query), 0, len(path), path)
    if query in lower:
        return (2, 0, len(path), path)
    for kind, text in ((3, name), (4, lower)):
        span = _span(query, text)
        if span:
            return (kind, span, len(path), path)
    return None


def _span(query: str, text: str) -> int:
    """Return the length of the shortest piece of a text that has all letters in order; 0 if none has."""
    shortest = 0
    start = text.find(query[0])
    while start >= 0:
        at = start
        for letter in query[1:]:
            at = text.find(letter, at + 1)
            if at < 0:
                return shortest
        if not shortest or at + 1 - start < shortest:
            shortest = at + 1 - start
        start = text.find(query[0], start + 1)
    return shortest


def _in_folder(typed: str) -> Iterator[tuple[str, str]]:
    """Yield the files and folders that begin with a path, folders first, and the name of each."""
    folder, name = os.path.split(typed)
    found: list[str] = []
    try:
        with os.scandir(Path(folder).expanduser() if folder else ".") as entries:
            for _, entry in zip(range(_MOST_IN_FOLDER), entries, strict=False):
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                if is_text(entry.name) and not is_hidden and entry.name.lower().startswith(name.lower()):
                    found.append(entry.name + "/" * _is_folder(entry))
    except (OSError, RuntimeError, ValueError):  # no such folder, no such user's home, a NUL
        return
    for entry_name in sorted(found, key=lambda entry: (not entry.endswith("/"), entry.casefold())):
        yield os.path.join(folder, entry_name), entry_name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
