"""Fixtures for chats: a store, and a conversation in it."""

from contextlib import AsyncExitStack

import pytest

from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store


@pytest.fixture
async def running():
    """Return a function that returns its argument, and closes it when the test ends."""
    async with AsyncExitStack() as stack:
        yield lambda made: (stack.push_async_callback(made.close), made)[1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "chats.db"


@pytest.fixture
async def store(path, running):
    return running(await Store.open(path))


@pytest.fixture
def conversation(store):
    return Conversation(store, "guide")
