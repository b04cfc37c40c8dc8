"""The responses that the server stores, in the file of the conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from edgechat.chat.storage import responses
from edgechat.chat.storage.database import Database, method

_BUSY_MS = 2_000
"""How long to wait for another program's lock: the end of an answer waits as long."""


class ResponseStore(Database):
    """The responses of one file. Open it with `ResponseStore.open`, and close it.

    All methods raise StoreError where the file cannot be read or written.
    """

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open or create the file, and delete what is too old. Raises StoreError."""
        store = cls(path)
        try:
            await store._connect(_BUSY_MS)
            await store._call(responses.prune)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Close the file."""
        await self._disconnect()

    keep = method(responses.keep)
    body = method(responses.body)
    input_items = method(responses.input_items)
    chain = method(responses.chain)
    referenced = method(responses.referenced)
    delete = method(responses.delete)
