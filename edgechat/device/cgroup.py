"""Control groups of this process, innermost first, in cgroup v1 and v2.

Limits on ancestors apply too, so every group up to the mount point is listed. In a container, the file system
may show our own group as its root, or hide the groups above it. Then only the mount point is visible, and its
limits apply.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

_OCTAL = re.compile(r"\\([0-7]{3})")
r"""An octal escape in mountinfo: \040 is a space."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group: its folder and its cgroup version."""

    version: Literal[1, 2]
    folder: Path


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted hierarchy, in which the group `top` is visible at the path `point`."""

    version: Literal[1, 2]
    controllers: frozenset[str]
    top: PurePosixPath
    point: PurePosixPath


def groups(controller: str, root: Path = Path("/")) -> list[Group]:
    """Return the groups that may limit this process through `controller` ("cpu" or "memory").

    Both cgroup versions are included. The result is empty if there are no control groups. root: the folder
    that contains /proc and /sys.
    """
    memberships = _memberships(root)
    result: list[Group] = []
    for mount in _mounts(root):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        path = memberships.get("" if mount.version == 2 else controller)
        if path is not None:
            result += [Group(mount.version, folder) for folder in _lineage(mount, path, root)]
    return result


def _memberships(root: Path) -> dict[str, PurePosixPath]:
    """Return our group's path for each controller; version 2 has one path for all controllers, under ''."""
    paths: dict[str, PurePosixPath] = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[""] = PurePosixPath(path)
        else:
            paths |= {name: PurePosixPath(path) for name in controllers.split(",") if name}
    return paths


def _mounts(root: Path) -> list[_Mount]:
    # Fields of mountinfo: id parent dev ROOT POINT options [tags] - TYPE source SUPEROPTIONS
    mounts: list[_Mount] = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        unescaped = (_OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in fields[3:5])
        top, point = map(PurePosixPath, unescaped)
        version: Literal[1, 2] = 2 if kind[0] == "cgroup2" else 1
        mounts.append(_Mount(version, frozenset(kind[2].split(",")), top, point))
    return mounts


def _lineage(mount: _Mount, path: PurePosixPath, root: Path) -> list[Path]:
    point = root / str(mount.point).lstrip("/")
    # A path with '..' belongs to a group outside our namespace, which is not visible.
    if ".." in path.parts or not path.is_relative_to(mount.top):
        return [point]
    names = path.relative_to(mount.top).parts
    folders = [point.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def read_text(path: Path) -> str:
    """Return the text of a small file in /proc or /sys, or '' if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    """Return the number in a /sys file, or None if it is missing or holds anything else, such as 'max'."""
    text = read_text(path).strip()
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else None


def read_table(path: Path) -> dict[str, int]:
    """Return a file's numbers, keyed by name. Lines are `name number` or 'Name:  number kB' (left in kB)."""
    table: dict[str, int] = {}
    for line in read_text(path).splitlines():
        fields = line.replace(":", " ").split()
        if len(fields) >= 2 and fields[1].isascii() and fields[1].isdigit():
            table[fields[0]] = int(fields[1])
    return table
