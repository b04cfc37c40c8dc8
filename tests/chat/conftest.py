from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgechat.chat.storage.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "chats.db")
    yield opened
    await opened.close()
