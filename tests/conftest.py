"""What all tests share: a home of their own, so that no chat or log of a test reaches the user's folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's affair; pytest's own timeout ends what hangs.
settings.register_profile("edgechat", deadline=None)
settings.load_profile("edgechat")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep settings, chats and logs inside the test's folder; child processes inherit it."""
    monkeypatch.setenv("EDGECHAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
