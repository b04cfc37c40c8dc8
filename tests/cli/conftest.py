"""What several of the commands' tests need."""

from __future__ import annotations

import subprocess
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
