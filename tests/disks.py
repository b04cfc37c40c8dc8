"""Disks of a test's own: so small that they are soon full, or read-only."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

UNMOUNTING = 20.0


@contextlib.contextmanager
def small_disk(folder: Path, limit: str) -> Iterator[None]:
    """Mount a disk in memory with mount's option `limit` (as "size=2m") onto `folder` meanwhile.

    The test is skipped where only root may do so. A process that was just killed may hold a file open
    for a moment more; a disk that stays busy for `UNMOUNTING` seconds fails the test.
    """
    with _mounted(folder, ["-t", "tmpfs", "-o", limit, "none"]):
        yield


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make the disk of `folder` read-only meanwhile, for root, too; see `small_disk`."""
    with _mounted(folder, ["--bind", str(folder)]):
        remount = ["mount", "-o", "remount,ro,bind", str(folder)]
        subprocess.run(remount, capture_output=True, check=True)
        yield


def fill(disk: Path) -> None:
    """Leave no byte on a small disk."""
    with (disk / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def _mounted(folder: Path, words: list[str]) -> Iterator[None]:
    mount = ["mount", *words, str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a disk")
    try:
        yield
    finally:
        end = time.monotonic() + UNMOUNTING
        while subprocess.run(["umount", folder], capture_output=True, check=False).returncode:
            assert time.monotonic() < end, f"{folder} is still in use"
            time.sleep(0.1)
