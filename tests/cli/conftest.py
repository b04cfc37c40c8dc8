"""Fixtures for the tests of commands."""

import tempfile
from functools import partial
from pathlib import Path

import pytest

from tests import homes, scripted
from tests.cli.running import edgechat


@pytest.fixture
def tmp_path(tmp_path, request):
    """Give transcripts a folder whose path has the same length everywhere, since text is wrapped after it."""
    if "transcript" not in request.fixturenames:
        yield tmp_path
        return
    root = Path("/tmp").resolve()
    prefix = "edgechat-".ljust(24 - len(str(root)), "-")
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Make an empty folder the user's home."""
    homes.settle(tmp_path / "user", monkeypatch)
    return tmp_path / "user"


@pytest.fixture
def pull(hub, hf_cache):
    """Return a function that runs `edgechat pull` against the hub."""
    return partial(edgechat, "pull")


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a scripted model and returns its path."""

    def write(**fields):
        return scripted.write(tmp_path / "model.gguf", **fields)

    return write
