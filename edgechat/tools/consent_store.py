"""The answers to questions about tools, in a file of edgechat's data folder or in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from edgechat.base import paths
from edgechat.base.errors import StoreError, StoreUnwritable
from edgechat.tools.consent import Answer, Standing, difference
from edgechat.tools.tool import ToolSpec

MOST_ANSWERS = 1000
"""Beyond which the oldest are forgotten, so that they are asked for again."""
_MOST_BYTES = 32 * 2**20
_LOCK_SECONDS = 5


class GivenConsent(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is kept, with what was shown of the tool."""

    server: str
    tool: str
    answer: Literal["chat", "always", "never"]
    chat_id: str | None = None
    """Of an answer for one chat."""
    pin: str
    """See ToolSpec."""
    description: str
    schema: str
    at: float
    """Seconds since 1970."""


class ConsentStore:
    """The answers that are kept, in `consents.json` of edgechat's data folder or in memory.

    Programs may share the file: it is read before each answer and locked while it is changed. A file that is
    damaged counts as empty: the user is asked again.
    """

    def __init__(self, path: Path | None) -> None:
        """path: see `consents_path`; None keeps them in memory, for chats that are not stored either."""
        self._path = path
        self._in_memory: tuple[GivenConsent, ...] = ()

    async def standing(self, tool: ToolSpec, chat_id: str) -> Standing:
        """Return what is known about a tool in a chat."""
        kept = [one for one in await self.given() if (one.server, one.tool) == (tool.server, tool.name)]
        if any(one.answer == "never" for one in kept):
            return Standing(False)
        mine = [one for one in kept if one.chat_id in (None, chat_id)]
        if any(one.pin == tool.pin for one in mine):
            return Standing(True)
        latest = max(mine, key=lambda one: one.at, default=None)
        if latest is None:
            return Standing(None)
        changed = difference(latest.description, latest.schema, tool)
        return Standing(None, changed or "Its name or title has changed.")

    async def keep(self, tool: ToolSpec, answer: Answer, chat_id: str) -> None:
        """Keep an answer, in the place of earlier ones; once and no are not kept. Raises StoreError."""
        if answer == "once" or answer == "no":
            return
        given = GivenConsent(
            server=tool.server,
            tool=tool.name,
            answer=answer,
            chat_id=chat_id if answer == "chat" else None,
            pin=tool.pin,
            description=tool.description,
            schema=tool.schema,
            at=time.time(),
        )

        def replaced(one: GivenConsent) -> bool:
            is_same = (one.server, one.tool) == (given.server, given.tool)
            return is_same and (given.chat_id is None or one.chat_id == given.chat_id)

        await self._change(lambda kept: [*(one for one in kept if not replaced(one)), given])

    async def given(self) -> Sequence[GivenConsent]:
        """Return the answers that are kept, the oldest first."""
        if self._path is None:
            return self._in_memory
        return await asyncio.to_thread(_read, self._path)

    async def withdraw(self, server: str, tool: str | None = None) -> int:
        """Forget the answers about a tool, or about all of a server; return how many. Raises StoreError."""
        found = [one for one in await self.given() if one.server == server and tool in (None, one.tool)]
        if found:
            gone = {(one.server, one.tool) for one in found}
            await self._change(lambda kept: [one for one in kept if (one.server, one.tool) not in gone])
        return len(found)

    async def forget_chats(self, chat_ids: Collection[str]) -> None:
        """Forget the answers for chats that are deleted. Raises StoreError."""
        if any(one.chat_id in chat_ids for one in await self.given()):
            await self._change(lambda kept: [one for one in kept if one.chat_id not in chat_ids])

    async def _change(self, change: Callable[[Sequence[GivenConsent]], list[GivenConsent]]) -> None:
        path = self._path
        if path is None:
            self._in_memory = tuple(change(self._in_memory)[-MOST_ANSWERS:])
            return

        def write() -> None:
            with _locked(path):
                kept = change(_read(path))[-MOST_ANSWERS:]
                paths.replace(path, msgspec.json.encode(kept))

        await asyncio.to_thread(write)


def consents_path() -> Path:
    """Return the path of the file, which need not exist. Raises FolderError."""
    return paths.data_dir() / "consents.json"


def _read(path: Path) -> tuple[GivenConsent, ...]:
    try:
        return msgspec.json.decode(paths.read_bytes(path, _MOST_BYTES), type=tuple[GivenConsent, ...])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file against changes by other programs. Raises StoreError, also if it cannot be written."""
    import filelock

    try:
        with filelock.FileLock(path.with_name(".consents.lock"), timeout=_LOCK_SECONDS, mode=0o600):
            yield
    except filelock.Timeout as error:
        raise StoreError("Another program is keeping an answer about a tool.", hint="Try again.") from error
    except OSError as error:
        raise StoreUnwritable(
            f"The answer about a tool cannot be kept in {path}: {error.strerror}.",
            hint="Answer for this call only, or make room on the disk and check the permissions.",
        ) from error
