"""Disks of a test's own, so small that they are soon full."""

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
    mount = ["mount", "-t", "tmpfs", "-o", limit, "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        end = time.monotonic() + UNMOUNTING
        while subprocess.run(["umount", folder], capture_output=True, check=False).returncode:
            assert time.monotonic() < end, f"{folder} is still in use"
            time.sleep(0.1)
