import pytest

from tests.tui.driving import Scenes


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where the conversations are stored; its folder is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


@pytest.fixture
def scene(path):
    return Scenes(path)
