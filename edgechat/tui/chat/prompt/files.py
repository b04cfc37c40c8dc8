"""Files and folders in the prompt: path completions, and files named in the text.

Most functions read from the disk, so they must not run on the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import DocumentError, ImageError
from edgechat.base.text import is_text, one_line
from edgechat.chat.attachments import paths_named_in, read_image
from edgechat.chat.commands import commands_of, parse_command
from edgechat.tui.chat.prompt.above import Chip, Suggestion, chip_of

if TYPE_CHECKING:
    from edgechat.base.images.image import ImageLibrary
    from edgechat.chat.records import AttachedImage


_MOST_IN_FOLDER = 500
_MOST_BELOW, _SECONDS = 20_000, 1.0
_MOST_FOUND = 50
_FRESH = 10.0
"""Seconds before the working folder is read again."""
_PATH = re.compile(r"(?:^|(?<=\s))@(\S*)$")
_FILE_COMMANDS = {command.name for command in commands_of("app") if command.argument == "FILE"}
_FOLDER_COMMANDS = {command.name for command in commands_of("app") if "FOLDER" in command.argument}
"""Commands whose argument may be a path. An argument that looks like a path is treated as one."""

Rank = tuple[int, int, int, str]


_MAX_PROBLEM = 70
"""Maximum number of characters in the description of a problem."""


@dataclass(frozen=True, slots=True)
class TypedPath:
    """A path being typed, after an @ or as the argument of a command."""

    path: str
    start: int
    """Position of the first character that a completion replaces: the @, if there is one."""
    after_at: bool
    folders_only: bool = False

    def suggestion(self, path: str, label: str) -> Suggestion:
        """Return a suggestion for a path. The path of a folder must end with a slash."""
        is_folder = path.endswith("/")
        label = one_line(label, 60)
        if not self.after_at:
            return Suggestion(path, self.start, label, more=is_folder)
        text = f"@{path}" if is_folder else f'@"{path}" ' if " " in path else f"@{path} "
        return Suggestion(text, self.start, label, more=is_folder)


def path_at_end(before: str) -> TypedPath | None:
    """Return the path being typed at the end of the text, if any."""
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
    """Finds files and folders by letters in their paths."""

    def __init__(self) -> None:
        self._below: list[tuple[str, str]] = []
        """Paths below the working folder, each with its lowercase form."""
        self._read_at = -_FRESH
        self._reading = threading.Lock()

    def suggestions(self, typed: TypedPath) -> list[Suggestion]:
        """Return completions: paths that start with the typed one, then others that contain its letters.

        Returns an empty list if the typed path is complete.
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
    """Return how well a query matches a path (a lower rank is better), or None if it does not match.

    Names that start with the query come first, then names and paths that contain it, then those that contain
    its letters in order, with letters close together ranking better. query, lower: in lower case.
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
    """Return the length of the shortest substring that has all letters in order, or 0 if there is none."""
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
    """Yield the paths that start with `typed`, each with its name; folders come first."""
    folder, name = os.path.split(typed)
    found: list[str] = []
    try:
        with os.scandir(Path(folder).expanduser() if folder else ".") as entries:
            for _, entry in zip(range(_MOST_IN_FOLDER), entries, strict=False):
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                if is_text(entry.name) and not is_hidden and entry.name.lower().startswith(name.lower()):
                    found.append(entry.name + "/" * _is_folder(entry))
    except (OSError, RuntimeError, ValueError):  # no such folder, no home for that user, or a NUL
        return
    for entry_name in sorted(found, key=lambda entry: (not entry.endswith("/"), entry.casefold())):
        yield os.path.join(folder, entry_name), entry_name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image named in the text."""

    path: str
    version: tuple[int, int]
    """The file's modification time and size. The file is read again when they change."""
    image: AttachedImage | None
    problem: str = ""
    """Why the image cannot be sent."""

    @property
    def chip(self) -> Chip:
        return Chip(f"▣ {self.problem}", is_problem=True) if self.image is None else chip_of(self.image)


@dataclass(frozen=True, slots=True)
class NamedFolder:
    """A folder named in the text."""

    path: str
    chip: Chip | None = None
    """The chip to show for the folder, or None if it contains no documents."""


class NamedFiles:
    """Files and folders named in the prompt. Folders are read once; files are read again if they change."""

    def __init__(self) -> None:
        self.found: list[NamedImage] = []
        self.folders: list[NamedFolder] = []

    async def update(self, text: str, library: Callable[[], Awaitable[ImageLibrary]]) -> None:
        """Find the files and folders named in the text."""
        known = {named.path: named for named in self.found}
        found = []
        for path in await asyncio.to_thread(paths_named_in, text, "image"):
            version = await asyncio.to_thread(_version, path)
            named = known.get(path)
            if named is None or named.version != version:
                named = await asyncio.to_thread(_read, await library(), path, version)
            found.append(named)
        self.found = found
        folders = {folder.path: folder for folder in self.folders}
        for path in (paths := await asyncio.to_thread(paths_named_in, text, "folder")):
            if path not in folders:
                folders[path] = await asyncio.to_thread(_surveyed, path)
        self.folders = [folders[path] for path in paths]

    def clear(self) -> None:
        """Forget everything. Called once the text has been sent."""
        self.found, self.folders = [], []

    def shown(self, attached: Collection[AttachedImage]) -> list[NamedImage | NamedFolder]:
        """Return the images not already attached, then the folders."""
        digests = {image.digest for image in attached}
        images = [named for named in self.found if named.image is None or named.image.digest not in digests]
        return [*images, *(folder for folder in self.folders if folder.chip is not None)]

    def chips(self, attached: Collection[AttachedImage]) -> list[Chip]:
        return [named.chip for named in self.shown(attached) if named.chip is not None]


def _surveyed(path: str) -> NamedFolder:
    from edgechat.documents.registry import collection_at, root_of, survey

    try:
        root = root_of(path)
    except DocumentError:  # it has since been removed
        return NamedFolder(path)
    name = f"{one_line(root.name, 30)}/"
    known = collection_at(root)
    if known is not None and known.counts is not None and known.counts.files:
        return NamedFolder(path, Chip(f"▤ {name} · {known.about}"))
    found = survey(root)
    if found.is_large:
        return NamedFolder(path, Chip(f"▤ {name} is large: /docs {one_line(path, 30)}", is_problem=True))
    if not found.files:
        return NamedFolder(path)
    return NamedFolder(path, Chip(f"▤ {name} · {found.files:,} file{'s' * (found.files != 1)}"))


def _version(path: str) -> tuple[int, int]:
    try:
        about = Path(path).expanduser().stat()
    except OSError:  # it has since been removed
        return 0, 0
    return about.st_mtime_ns, about.st_size


def _read(library: ImageLibrary, path: str, version: tuple[int, int]) -> NamedImage:
    try:
        return NamedImage(path, version, read_image(library, path))
    except ImageError as error:
        return NamedImage(path, version, None, one_line(error.message, _MAX_PROBLEM).rstrip("."))


def command_suggestions(text: str, arguments: Callable[[str], Sequence[tuple[str, str]]]) -> list[Suggestion]:
    """Return the completions for a command.

    arguments: returns a command's possible arguments, each with a short description.
    """
    if not text.startswith("/") or "\n" in text:
        return []
    name, space, rest = text[1:].partition(" ")
    if not space:
        return [
            Suggestion(
                f"/{command.name}" + " " * bool(command.argument), 0, command.usage, command.description
            )
            for command in commands_of("app")
            if command.name.startswith(name.lower())
        ]
    start = len(name) + 2
    matches = [(value, about) for value, about in arguments(name) if rest.lower() in value.lower()]
    if any(value.strip().lower() == rest.strip().lower() for value, _ in matches):
        return []  # Enter sends the text as typed, not an argument that starts with it
    matches.sort(key=lambda match: not match[0].lower().startswith(rest.lower()))
    return [Suggestion(value, start, one_line(value, 34), about) for value, about in matches]
