"""What several of the commands' tests need."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

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
        path = tmp_path / "model.scripted.json"
        path.write_text(json.dumps(fields))
        return path

    return write
