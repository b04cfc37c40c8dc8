"""What several of the commands' tests need."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.pulling import EDGECHAT, Pull, Run
from tests.hub import Hub


@pytest.fixture
def pull(hub: Hub, hf_cache: Path) -> Pull:
    """Run `edgechat pull` against the hub."""

    def run(*words: str) -> Run:
        return subprocess.run(
            [*EDGECHAT, "pull", *words],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a scripted model; return its path."""

    def write(**fields: object) -> Path:
        path = tmp_path / "model.scripted.json"
        path.write_text(json.dumps(fields))
        return path

    return write
