"""The user's consent to calls of tools: how it is asked for, and what it is for.

A consent is for a tool as it was described when the user gave it: its `ToolSpec.pin`. Of a tool that has
changed since, it is void, and the next question shows the difference. `never` outlives changes.
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
"""once: this call; chat: this tool in this chat; always: this tool; no: not this call; never: not this tool.

once and no are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that needs the user's consent. Everything in it can be shown as it is, in full."""

    tool: ToolSpec
    arguments: str
    """Indented, with every character that could hide something written out."""
    changed: str = ""
    """How the tool differs from what the user consented to: lines that begin with +, - or a space."""


Ask = Callable[[Question], Awaitable[Answer]]
"""Asks the user; being cancelled means that nobody will answer."""


Permission = Callable[[ToolSpec, str], Awaitable[bool]]
"""Decides whether to call a tool with these arguments, as the model wrote them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the user's earlier answers say about a tool."""

    allowed: bool | None
    """None: to be asked."""
    changed: str = ""
    """See `Question.changed`."""


class AskingPermission:
    """Asks the user where no earlier answer decides; one question at a time, in the order of the calls."""

    def __init__(self, store: ConsentStore, chat_id: str, ask: Ask) -> None:
        self._store = store
        self._chat_id = chat_id
        self._ask = ask
        self._asking = asyncio.Lock()

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission. Raises StoreError if the answer cannot be kept; then nothing is called."""
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
    """Permits the tools that a command line names, and nothing else: earlier answers do not count."""

    def __init__(self, names: Collection[str]) -> None:
        """names: SERVER (all of its tools), SERVER/TOOL, or the names that the model uses."""
        self._names = frozenset(names)

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See Permission."""
        names = {tool.server, f"{tool.server}/{tool.name}", tool.model_name}
        return tool.harmless or not names.isdisjoint(self._names)


def difference(old_description: str, old_schema: str, tool: ToolSpec) -> str:
    """Return how a tool has changed: the lines of a diff without its headers, '' if they do not differ."""
    import difflib

    before = [*old_description.splitlines(), *_lines(old_schema)]
    after = [*tool.description.splitlines(), *_lines(tool.schema)]
    return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])


def _lines(schema: str) -> list[str]:
    return json.dumps(json.loads(schema), indent=2, sort_keys=True, ensure_ascii=False).splitlines()


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
