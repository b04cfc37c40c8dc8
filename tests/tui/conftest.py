import pytest
from textual import _wait

from tests.tui.driving import Scenes

# Each pause of a pilot waits until the app does nothing for so long. A fiftieth of a second was half of the
# time of all tests of the app.
_wait.SLEEP_GRANULARITY = 1 / 100
_wait.SLEEP_IDLE = _wait.SLEEP_GRANULARITY / 20


@pytest.fixture
def path(tmp_path, monkeypatch, measured):
    """Where the conversations are stored; its folder is the current one, and the machine is measured."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "chats.db"


@pytest.fixture
def scene(path):
    return Scenes(path)
