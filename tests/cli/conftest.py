"""What several of the commands' tests need."""

from functools import partial

import pytest

from tests import scripted
from tests.cli.running import edgechat


@pytest.fixture
def pull(hub, hf_cache):
    """Run `edgechat pull` against the hub."""
    return partial(edgechat, "pull")


@pytest.fixture
def script(tmp_path):
    """Write a scripted model; return its path."""

    def write(**fields):
        return scripted.write(tmp_path / "model.gguf", **fields)

    return write
