"""The hub of the tests, in place of the real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgechat.models import transfer
from tests.hub import Hub

VARIABLES = (
    "EDGECHAT_OFFLINE",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Start a hub, and let edgechat ask it, with limits of time that suit a machine's own loopback."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(transfer, "IDLE", 0.5)
    monkeypatch.setattr(transfer, "SPARE", 0.3)
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
