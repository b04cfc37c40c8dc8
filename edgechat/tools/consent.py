"""The user's consent to tool calls: asking for it, what it covers, and where the answers are stored.

Consent covers a tool exactly as it was described at the time: its `ToolSpec.pin`. If the tool changes, the
consent becomes void, and the next question shows the difference. `never` survives changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from edgechat.base import paths
from edgechat.base.errors import StoreError, StoreUnwritable
from edgechat.tools.tool import ToolSpec, shown_arguments

Answer = Literal["once", "chat", "always", "no", "never"]
"""The user's answer.

once: allow this call. chat: allow this tool in this chat. always: allow this tool. no: refuse this call.
never: refuse this tool. once and no are not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that needs the user's consent. All text is safe to display, and must be displayed in full."""

    tool: ToolSpec
    arguments: str
    """The arguments, indented; any characters that could hide something are escaped."""
    changed: str = ""
    """How the tool differs from the one that the user consented to: lines starting with +, - or a space."""


Ask = Callable[[Question], Awaitable[Answer]]
"""A function that asks the user. It is cancelled if the answer is no longer needed."""


Permission = Callable[[ToolSpec, str], Awaitable[bool]]
"""A function that decides whether to call a tool, given the arguments exactly as the model wrote them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the user's earlier answers mean for a tool."""

    allowed: bool | None
    """None if the user must be asked."""
    changed: str = ""
    """See `Question.changed`."""


class AskingPermission:
    """Asks the user unless an earlier answer applies: one question at a time, in the order of the calls."""

    def __init__(self, store: ConsentStore, chat_id: str, ask: Ask) -> None:
        self._store = store
        self._chat_id = chat_id
        self._ask = ask
        self._asking = asyncio.Lock()

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission. Raises StoreError if the answer cannot be stored."""
        if tool.harmless:
            return True
        async with self._asking:
            standing = await self._store.standing(tool, self._chat_id)
            if standing.allowed is not None:
                return standing.allowed
            question = Question(tool=tool, arguments=shown_arguments(arguments), changed=standing.changed)
            answer = await self._ask(question)
            await self._store.keep(tool, answer, self._chat_id)
            return answer in ("once", "chat", "always")


class NamedPermission:
    """Permits only the tools named on the command line, regardless of earlier answers."""

    def __init__(self, names: Collection[str]) -> None:
        """names: SERVER (for all its tools), SERVER/TOOL, or tool names as the model sees them."""
        self._names = frozenset(names)

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission."""
        names = {tool.server, f"{tool.server}/{tool.name}", tool.model_name}
        return tool.harmless or not names.isdisjoint(self._names)


def difference(old_description: str, old_schema: str, tool: ToolSpec) -> str:
    """Return how a tool has changed, as diff lines without headers; '' if it has not changed."""
    import difflib

    before = [*old_description.splitlines(), *_lines(old_schema)]
    after = [*tool.description.splitlines(), *_lines(tool.schema)]
    return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])


def _lines(schema: str) -> list[str]:
    return json.dumps(json.loads(schema), indent=2, sort_keys=True, ensure_ascii=False).splitlines()


MOST_ANSWERS = 1000
"""Beyond this number, the oldest answers are deleted, and the user is asked again."""
_MOST_BYTES = 32 * 2**20
_LOCK_SECONDS = 5


class GivenConsent(msgspec.Struct, frozen=True, kw_only=True):
    """A stored answer, with the tool as it was shown."""

    server: str
    tool: str
    answer: Literal["chat", "always", "never"]
    chat_id: str | None = None
    """Set if the answer applies to a single chat."""
    pin: str
    """See ToolSpec."""
    description: str
    schema: str
    at: float
    """Seconds since 1970."""


class ConsentStore:
    """Stored answers, in `consents.json` in edgechat's data folder, or in memory.

    Several programs can share the file: it is read for each question, and locked while being changed. A
    damaged file counts as empty, so the user is asked again.
    """

    def __init__(self, path: Path | None) -> None:
        """path: see `consents_path`; None to store answers in memory only, for chats that are not saved."""
        self._path = path
        self._in_memory: tuple[GivenConsent, ...] = ()

    async def standing(self, tool: ToolSpec, chat_id: str) -> Standing:
        """Return what earlier answers mean for a tool in a chat."""
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
        """Store an answer, replacing any earlier ones; once and no are not stored. Raises StoreError."""
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
        """Return the stored answers, oldest first."""
        if self._path is None:
            return self._in_memory
        return await asyncio.to_thread(_read, self._path)

    async def withdraw(self, server: str, tool: str | None = None) -> int:
        """Delete the answers for a tool or a whole server; return how many there were. Raises StoreError."""
        found = [one for one in await self.given() if one.server == server and tool in (None, one.tool)]
        if found:
            gone = {(one.server, one.tool) for one in found}
            await self._change(lambda kept: [one for one in kept if (one.server, one.tool) not in gone])
        return len(found)

    async def forget_chats(self, chat_ids: Collection[str]) -> None:
        """Delete the answers that apply to deleted chats. Raises StoreError."""
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
    """Return the path of the file with stored answers, which need not exist. Raises FolderError."""
    return paths.data_dir() / "consents.json"


def _read(path: Path) -> tuple[GivenConsent, ...]:
    try:
        return msgspec.json.decode(paths.read_bytes(path, _MOST_BYTES), type=tuple[GivenConsent, ...])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file against changes by other programs. OS errors raised in the block become StoreError."""
    import filelock

    try:
        with filelock.FileLock(path.with_name(".consents.lock"), timeout=_LOCK_SECONDS, mode=0o600):
            yield
    except filelock.Timeout as error:
        raise StoreError("Another program is saving an answer about a tool.", hint="Try again.") from error
    except OSError as error:
        raise StoreUnwritable(
            f"The answer about a tool cannot be saved in {path}: {error.strerror}.",
            hint="Answer for this call only, or free some disk space and check the permissions.",
        ) from error
