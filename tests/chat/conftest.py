import pytest

from edgechat.chat.storage.store import Store


@pytest.fixture
async def store(tmp_path):
    opened = await Store.open(tmp_path / "chats.db")
    yield opened
    await opened.close()
