"""Disks for a single test: so small that they are soon full, or read-only."""

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
    """Mount a disk in memory at `folder` for the duration; limit: an option of mount, such as "size=2m".

    Skips the test without root. A process that was just killed may keep a file open a moment longer; if
    the disk stays busy for `UNMOUNTING` seconds, the test fails.
    """
    with _mounted(folder, ["-t", "tmpfs", "-o", limit, "none"]):
        yield


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make the disk of `folder` read-only for the duration, even for root; see `small_disk`."""
    with _mounted(folder, ["--bind", str(folder)]):
        remount = ["mount", "-o", "remount,ro,bind", str(folder)]
        subprocess.run(remount, capture_output=True, check=True)
        yield


def fill(disk: Path) -> None:
    """Fill a small disk to the last byte."""
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
