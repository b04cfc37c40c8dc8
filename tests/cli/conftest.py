"""What several of the commands' tests need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import scripted
from tests.cli.pulling import Pull
from tests.cli.running import edgechat
from tests.hub import Hub


@pytest.fixture
def pull(hub: Hub, hf_cache: Path) -> Pull:
    """Run `edgechat pull` against the hub."""
    return partial(edgechat, "pull")


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Write a scripted model; return its path."""

    def write(**fields: object) -> Path:
        return scripted.write(tmp_path / "model.gguf", **fields)

    return write
