"""Folder walk: lists everything in a folder and its subfolders, except what git ignores.

pathspec applies the rules in `.gitignore`. `git ls-files` would also respect the user's global rules, but git
is not installed everywhere, cannot be bounded, and runs programs configured by an untrusted repository.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.text import is_text

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_DEEPEST = 12
_MOST_PARENTS = 32
"""Maximum number of parent folders to search for the root of the repository."""
_MOST_RULES = 1 << 16
"""Maximum size of one .gitignore, in bytes."""
_MOST_STARS = 6
"""Maximum number of asterisks in a rule: with more, its regular expression can take forever."""


@dataclass(slots=True)
class FolderContents:
    """The result of a walk."""

    paths: list[str] = field(default_factory=list)
    """Paths relative to the folder, with slashes as separators and at the end of folder names. Deeper entries
    come later.
    """
    unread: list[str] = field(default_factory=list)
    """Folders not listed, or not in full: they are unreadable or too deep, or the walk ended early."""
    is_complete: bool = True
    """False if the walk ended early, or skipped folders that are nested too deeply."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules that apply in one folder."""

    specs: tuple[tuple[GitIgnoreSpec, str], ...] = ()
    """The rules in each .gitignore, outermost first, with the path from its folder to this one."""

    def of(self, folder: Path, name: str = "") -> _Rules:
        """Return these rules plus those in `folder`: the subfolder `name`, or this folder if `name` is ''."""
        below = tuple((spec, f"{prefix}{name}/") for spec, prefix in self.specs) if name else self.specs
        own = _read_rules(folder / ".gitignore")
        return _Rules(below if own is None else (*below, (own, "")))

    def ignore(self, name: str) -> bool:
        """Return whether an entry is ignored. A folder's name must end with a slash."""
        verdict = False
        for spec, prefix in self.specs:
            found = spec.check_file(prefix + name).include
            verdict = verdict if found is None else found
        return verdict


def walk(folder: Path, *, most: int, seconds: float) -> FolderContents:
    """Return everything in a folder and its subfolders, except hidden and ignored entries.

    Stops after `most` entries or after `seconds`. Raises OSError if the folder itself cannot be read;
    unreadable subfolders count as empty.
    """
    contents = FolderContents()
    end = time.monotonic() + seconds
    waiting = deque([("", 0, _rules_above(folder))])
    while waiting:
        path, depth, rules = waiting[0]
        room = most - len(contents.paths)
        if room <= 0 or time.monotonic() > end:
            contents.is_complete = False
            contents.unread += (one for one, *_ in waiting)
            break
        waiting.popleft()
        try:
            entries = list(islice(_entries(folder / path, rules), room + 1))
        except OSError:
            if not path:
                raise
            contents.unread.append(path)
            continue
        if len(entries) > room:
            contents.is_complete = False
            contents.unread.append(path)
        for name in sorted(entries[:room]):
            contents.paths.append(path + name)
            if name.endswith("/"):
                if depth < _DEEPEST:
                    waiting.append((path + name, depth + 1, rules.of(folder / path / name, name[:-1])))
                else:
                    contents.is_complete = False
                    contents.unread.append(path + name)
    return contents


def told_size(path: Path) -> str:
    """Return the size of a file as shown after its name in a list, or '' if the file is gone."""
    try:
        return f"  {path.lstat().st_size:,} bytes"
    except OSError:
        return ""


def _entries(folder: Path, rules: _Rules) -> Iterator[str]:
    """Yield the names of the files and folders in a folder, except symlinks and junctions to folders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.startswith(".") or not is_text(name) or "\n" in name:
                continue
            is_folder = entry.is_dir(follow_symlinks=False) and not _is_junction(entry)
            name += "/" * is_folder
            if (is_folder or _is_file(entry)) and not rules.ignore(name):
                yield name


def _is_junction(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a junction, a kind of link on Windows that `is_dir` follows."""
    if sys.platform == "win32":
        return entry.stat(follow_symlinks=False).st_reparse_tag == stat.IO_REPARSE_TAG_MOUNT_POINT
    return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a loop of symlinks
        return False


def _rules_above(folder: Path) -> _Rules:
    """Return the rules that apply in a folder: its own and, in a repository, those of its parent folders."""
    folder = folder.resolve()
    above = [folder, *islice(folder.parents, _MOST_PARENTS)]
    root = next((n for n, parent in enumerate(above) if (parent / ".git").exists()), 0)
    rules = _Rules().of(above[root])
    for parent in reversed(above[:root]):
        rules = rules.of(parent, parent.name)
    return rules


def _read_rules(path: Path) -> GitIgnoreSpec | None:
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_RULES).decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    from pathspec import GitIgnoreSpec  # 50 ms
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    patterns = []
    for line in lines:
        if line.count("*") <= _MOST_STARS:
            with suppress(ValueError):  # git also ignores malformed rules
                patterns.append(GitIgnoreSpecPattern(line))
    return GitIgnoreSpec(patterns)
