"""Tools that list, read and search the files in a folder chosen by the user.

Nothing outside the folder can be reached: paths, including symlinks, are resolved before they are opened.
Hidden files and folders, which often contain secrets, are treated as missing.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from edgechat.base import paths
from edgechat.base.errors import ToolError
from edgechat.base.folders import told_size, walk
from edgechat.base.text import flat, is_binary, is_text, one_line
from edgechat.tools.builtin.group import BuiltInGroup, BuiltInTool, ToolFailure

_MOST_BYTES = 8 * 2**20
"""Maximum size of a file to read or search."""
_MOST_LINES, _MOST_CHARACTERS = 400, 24_000
"""Limits on a single `read_file` answer."""
_MOST_LISTED, _MOST_SEARCHED = 400, 5000
_MOST_FOUND, _MOST_NEAR, _MOST_COMPARED, _LINE = 60, 10, 10_000, 240
_WORDS = re.compile(r"\w{3,}")
_SECONDS = 5.0
_NOTHING = "No line contains this text. Search for a single, shorter word, or read a file:"

Folder = Annotated[str, msgspec.Meta(description="Relative path of a folder; empty: the whole folder")]


class FileRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `read_file`."""

    path: Annotated[str, msgspec.Meta(description="Relative path of the file")]
    start_line: Annotated[int, msgspec.Meta(description="The first line to read, from 1", ge=1)] = 1


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `list_files`."""

    folder: Folder = ""


class FileSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `search_files`."""

    text: Annotated[
        str,
        msgspec.Meta(
            description="Text to look for: a word, or a few that stand together", min_length=1, max_length=200
        ),
    ]
    folder: Annotated[
        str, msgspec.Meta(description="Relative path of a folder or of one file; empty: the whole folder")
    ] = ""


def files_below(folder: str) -> BuiltInGroup:
    """Return the tools for a folder. Raises ToolError if there is no such folder."""
    try:
        root = Path(folder).expanduser().resolve(strict=True)
        is_folder = root.is_dir() and is_text(str(root))
    except (OSError, RuntimeError, ValueError):
        is_folder = False
    if not folder or not is_folder:
        shown = one_line(folder, 120) or "(none)"
        raise ToolError(
            f"The folder for the files tool does not exist: {shown}.", hint="Name it: files:FOLDER"
        )
    below = f"below the folder {flat(str(root))}"
    group = _Files(root)
    return BuiltInGroup(
        "files",
        BuiltInTool("list_files", f"Lists the files {below}, with their sizes.", Listing, group.list_files),
        BuiltInTool("read_file", f"Reads a text file {below}.", FileRange, group.read_file),
        BuiltInTool(
            "search_files",
            f"Finds the lines that contain a text, in the files {below}: path, line number and line.",
            FileSearch,
            group.search_files,
        ),
    )


class _Files:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def list_files(self, wanted: Listing) -> str:
        return await asyncio.to_thread(self._list, wanted.folder)

    async def read_file(self, wanted: FileRange) -> str:
        return await asyncio.to_thread(self._read, wanted.path, wanted.start_line)

    async def search_files(self, wanted: FileSearch) -> str:
        return await asyncio.to_thread(self._search, wanted.text.casefold(), wanted.folder)

    def _list(self, name: str) -> str:
        folder, found, is_complete = self._walk(name, _MOST_LISTED)
        lines = list[str]()
        for path in sorted(found):
            size = "" if path.endswith("/") else told_size(folder / path)
            shown = (folder / path).relative_to(self._root).as_posix() + "/" * path.endswith("/")
            lines.append(flat(shown) + size)
        return "\n".join(lines or ["nothing"]) + _ending(is_complete, len(found), "entries")

    def _read(self, name: str, start: int) -> str:
        lines = self._text(self._resolved(name)).splitlines()
        if start > max(1, len(lines)):
            raise ToolFailure(f"the file has {len(lines)} lines.")
        kept: list[str] = []
        room = _MOST_CHARACTERS
        for line in lines[start - 1 : start - 1 + _MOST_LINES]:
            if len(line) > room and kept:
                break
            kept.append(line if len(line) <= room else f"{line[:room]} [the line is longer]")
            room -= len(line) + 1
        end = start - 1 + len(kept)
        more = f"\n[Lines {start} to {end} of {len(lines)}. To go on: start_line {end + 1}]"
        return "\n".join(kept) + (more if end < len(lines) else "") if lines else "(The file is empty.)"

    def _search(self, text: str, name: str) -> str:
        end = time.monotonic() + _SECONDS
        if name.strip("./\\ ") and (file := self._resolved(name)).is_file():
            folder, found, is_complete = file.parent, [file.name], True
        else:
            folder, found, is_complete = self._walk(name, _MOST_SEARCHED)
        words = set(_WORDS.findall(text))
        hits, near = list[str](), list[tuple[str, set[str]]]()

        def is_enough() -> bool:
            return len(hits) > _MOST_FOUND or time.monotonic() > end

        for path in sorted(found):
            if is_enough():
                is_complete = False
                break
            for where, line in self._lines(folder / path):
                if is_enough():
                    is_complete = False
                    break
                folded = line.casefold()
                if text in folded:
                    hits.append(f"{where}: {line.strip()[:_LINE]}")
                elif not hits and len(near) < _MOST_COMPARED and (has := {w for w in words if w in folded}):
                    near.append((f"{where}: {line.strip()[:_LINE]}", has))
        ending = _ending(is_complete, min(len(hits), _MOST_FOUND), "lines")
        if not hits:
            return _instead(text, folder.relative_to(self._root), found, near) + ending
        return "\n".join(hits[:_MOST_FOUND]) + ending

    def _lines(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield 'PATH:NUMBER' and the text for each line of a file, or nothing if it is not readable text."""
        if path.is_dir():
            return
        name = path.relative_to(self._root).as_posix()
        with suppress(ToolFailure):
            for number, line in enumerate(self._text(self._resolved(name)).splitlines(), 1):
                yield f"{flat(name)}:{number}", line

    def _walk(self, name: str, most: int) -> tuple[Path, list[str], bool]:
        """Return a folder, the entries in it, and whether the list of entries is complete; see `walk`."""
        folder = self._resolved(name) if name.strip("./\\ ") else self._root
        try:
            contents = walk(folder, most=most, seconds=_SECONDS)
        except OSError as error:
            raise ToolFailure(f"{one_line(name)} is not a folder: {error.strerror}.") from error
        return folder, contents.paths, contents.is_complete

    def _resolved(self, name: str) -> Path:
        """Resolve a path relative to the folder. Raises ToolFailure if it is missing, outside or hidden."""
        shown = one_line(name)
        try:
            path = (self._root / name).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise ToolFailure(
                f"there is no {shown} in the folder: list_files shows what there is."
            ) from error
        if not path.is_relative_to(self._root):
            raise ToolFailure(f"{shown} is outside the folder that may be read.")
        if any(part.startswith(".") for part in path.relative_to(self._root).parts):
            raise ToolFailure(f"{shown} is hidden, and hidden files are not read.")
        return path

    def _text(self, path: Path) -> str:
        name = flat(path.relative_to(self._root).as_posix())
        try:
            data = paths.read_bytes(path, _MOST_BYTES)
        except OSError as error:
            raise ToolFailure(f"{name} cannot be read: {error.strerror}.") from error
        if is_binary(data):
            raise ToolFailure(f"{name} is a binary file of {len(data):,} bytes.")
        return data.decode("utf-8-sig", "replace")


def _instead(text: str, folder: Path, files: list[str], near: list[tuple[str, set[str]]]) -> str:
    """Return hints if no line contains `text`: file names that do, lines with its rare words, or any files.

    near: lines that contain words from `text`, each paired with those words.
    """
    shown = [flat((folder / file).as_posix()) for file in sorted(files)]
    if named := [file for file in shown if text in file.casefold()]:
        return "\n".join(["No line contains this text, but these file names do:", *named[:_MOST_NEAR]])
    if near:
        counts = Counter(word for _, words in near for word in words)
        best = heapq.nlargest(_MOST_NEAR, near, key=lambda line: sum(1 / counts[word] for word in line[1]))
        head = "No line contains this text. These lines contain some of its words:"
        return "\n".join([head, *(line for line, _ in best)])
    return "\n".join([_NOTHING, *shown[:_MOST_NEAR]]) if shown else "There are no files to search."


def _ending(is_complete: bool, n: int, what: str) -> str:
    return "" if is_complete else f"\n[Not complete: it ends after {n:,} {what}.]"
