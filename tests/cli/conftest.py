"""What several of the commands' tests need."""

import tempfile
from functools import partial
from pathlib import Path

import pytest

from tests import homes, scripted
from tests.cli.running import edgechat


@pytest.fixture
def tmp_path(tmp_path, request):
    """Give a transcript a folder whose path has the same length everywhere: text is wrapped behind it."""
    if "transcript" not in request.fixturenames:
        yield tmp_path
        return
    root = Path("/tmp").resolve()
    prefix = "edgechat-".ljust(24 - len(str(root)), "-")
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Make a folder the user's home, with nothing in it."""
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


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
