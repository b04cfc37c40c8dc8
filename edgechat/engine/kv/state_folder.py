"""The folder of the chats' states, for front ends too: it needs neither an engine nor numpy.

A state is `<chat>.state`. A file that is being written has the writing process in its name, so that leftovers
of dead processes can be recognized; it is renamed when it is complete. Conversations of programs are kept by
their clients: the ids of their states are hashes of what they begin with.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.base.process.owner import Owner, alive, this_process

_CHAT = re.compile(r"[0-9a-f]{8,64}", re.ASCII)
_STATE = re.compile(r"([0-9a-f]{8,64})\.state", re.ASCII)
_DRAFT = re.compile(r"([0-9a-f]{8,64})\.(\d{1,10})-(\d{1,15})-\d{1,15}\.part", re.ASCII)
"""Chat, id and start (in milliseconds since 1970) of the writing process, and a sequence number."""
_drafts = itertools.count()
HASHED_ID = 64
"""Digits of an id that is a hash; those of stored chats have fewer."""
UNUSED_DAYS = 30
"""Days after which a state with a hashed id is removed, if it is not used."""


def folder() -> Path:
    """Return the folder, which need not exist. Raises FolderError."""
    return paths.cache_dir() / "states"


def made_folder() -> Path:
    """Return the folder, created if necessary, readable only by the user. Raises FolderError, OSError."""
    path = folder()
    path.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def path_of(chat: str) -> Path:
    """Return the path of a chat's state. Raises FolderError; ValueError for a malformed id."""
    check_id(chat)
    return folder() / f"{chat}.state"


def check_id(chat: str) -> None:
    """Raise ValueError unless it is 8 to 64 hexadecimal digits, so that it cannot be another path."""
    if _CHAT.fullmatch(chat) is None:
        raise ValueError(f"not the id of a chat: {chat!r}")


def draft_of(chat: str) -> Path:
    """Return a path that no other process and no other call uses. Raises as `path_of` does."""
    owner = this_process()
    name = f"{chat}.{owner.pid}-{round(owner.started * 1000)}-{next(_drafts)}.part"
    return path_of(chat).with_name(name)


def forget(chat: str) -> None:
    """Remove what is kept of a chat, if anything. Raises ValueError, and FolderError if something stays.

    An engine that has the chat must forget it as well, or may write it again.
    """
    state = path_of(chat)
    leftovers = [e.path for e in _entries() if e.name.startswith(f"{chat}.") and _is_left_over(e.name)]
    for path in (state, *map(Path, leftovers)):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FolderError(
                f"The saved KV state of a chat cannot be removed: {path} ({error.strerror}).",
                hint="Remove it manually.",
            ) from error


def prune(keep: Callable[[str], bool]) -> int:
    """Remove the states of chats that `keep` rejects, those of programs that have not been used for long, and
    leftovers of dead processes; return how many.

    Raises FolderError. What cannot be removed stays.
    """
    oldest = time.time() - UNUSED_DAYS * 86_400
    unwanted = [
        path
        for chat, path, status in states()
        if (status.st_mtime < oldest if len(chat) == HASHED_ID else not keep(chat))
    ]
    unwanted += [entry.path for entry in _entries() if _is_left_over(entry.name)]
    return sum(map(_unlink, unwanted))


def evict(limit: int, *, keep: str | None = None) -> None:
    """Remove the least recently used states until all take no more than `limit` bytes.

    keep: the chat whose state is never removed. Leftovers of dead processes go as well. Raises FolderError.
    """
    found = states()
    total = sum(stat.st_size for _, _, stat in found)
    for entry in _entries():
        if _is_left_over(entry.name):
            _unlink(entry.path)
    evictable = [(stat.st_mtime_ns, stat.st_size, path) for chat, path, stat in found if chat != keep]
    for _, size, path in sorted(evictable):
        if total <= limit:
            break
        if _unlink(path):
            total -= size


def usage() -> tuple[int, int]:
    """Return how many states there are, and the bytes they take. Raises FolderError."""
    sizes = [stat.st_size for _, _, stat in states()]
    return len(sizes), sum(sizes)


def states() -> list[tuple[str, str, os.stat_result]]:
    """Return chat, path and status of each state. Raises FolderError."""
    found = []
    for entry in _entries():
        if (match := _STATE.fullmatch(entry.name)) is not None:
            with contextlib.suppress(OSError):  # it may vanish at any time
                found.append((match[1], entry.path, entry.stat(follow_symlinks=False)))
    return found


def _entries() -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder()) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FolderError(
            f"edgechat cannot read its folder {folder()}: {error.strerror}.",
            hint="Make it readable, or remove it: its contents can be computed again.",
        ) from error


def _is_left_over(name: str) -> bool:
    match = _DRAFT.fullmatch(name)
    return match is not None and not alive(Owner(int(match[2]), int(match[3]) / 1000))


def _unlink(path: str) -> bool:
    """Remove a file; False if it is still there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
