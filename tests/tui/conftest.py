import pytest

from tests.tui.driving import Scenes


@pytest.fixture
def path(tmp_path, monkeypatch, measured):
    """Return where conversations are stored, in the current folder, on a machine already measured."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


@pytest.fixture
def scene(path):
    return Scenes(path)
