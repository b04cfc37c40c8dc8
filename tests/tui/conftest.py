from types import SimpleNamespace

import pytest

from tests.tui.driving import Scenes


@pytest.fixture(autouse=True)
def _uncollected(monkeypatch):
    """Leave out the collection at the start of each app, which is slow among the remains of many."""
    unused = SimpleNamespace(collect=lambda: None, freeze=lambda: None)
    monkeypatch.setattr("edgechat.tui.chat.screen.gc", unused)


@pytest.fixture
def path(tmp_path, monkeypatch, measured):
    """Return where conversations are stored, in the current folder, on a machine already measured."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


@pytest.fixture
def scene(path):
    return Scenes(path)
