import pytest

from tests.tui.driving import Scenes


@pytest.fixture
def path(tmp_path, monkeypatch, measured):
    """Where the conversations are stored; its folder is the current one, and the machine is measured."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


@pytest.fixture
def scene(path):
    return Scenes(path)
