"""`edgechat chats`: list, search, show, export, import and delete stored conversations.

With --json, a list of objects is printed, the most recently used conversation first:

    id, title
    model                   the model of the latest reply
    front                   where it was used last: "app", or "run" for the command line
    n_messages              the number of questions and answers, without the system prompt
    date                    the day on which it started, which the model is told
    created_at, updated_at  seconds since 1970

    pinned                  whether it stays at the top of the app's list
    trashed_at              when it was moved to the trash, or null

`show` prints one such object, with `messages`: id, role, content, thinking, state, created_at, the
attachments of a question, and the figures and the error of a reply. `search` prints a list of objects, best
first: chat (an id), title, turn (an id, or null if the words are in the title), role, created_at, snippet,
and marks: the positions of the words in the snippet, as [from, to] in characters. `import` prints the
imported conversation as such an object.
"""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from edgechat.base.errors import ChatBusy, NotWritten
from edgechat.base.text import ago, escaped_json, flat, one_line
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export import files
from edgechat.chat.import_export.export import counted as counted
from edgechat.chat.import_export.export import model_name, to_json, to_markdown
from edgechat.chat.import_export.importing import MOST_BYTES, parse_chat
from edgechat.chat.records import TRASH_DAYS, Chat, Hit, Listed, Turn
from edgechat.chat.storage.store import Store, store_path
from edgechat.cli.output.layout import styled, table
from edgechat.cli.terminal_io import as_text, refused

T = TypeVar("T")

_HEADINGS = ("ID", "TITLE", "MODEL", "MESSAGES")
_TITLE, _MODEL = 40, 24
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_STDIO = "-"


def list_chats(*, limit: int, json: bool, trash: bool) -> int:
    """Run the command; return the exit code. Raises StoreError."""
    found = _with_store(lambda store: (store.trashed if trash else store.listed)(limit + 1))
    shown, more = found[:limit], len(found) > limit
    if json:
        _print_json([_object(one.chat, one.n_messages) for one in shown])
    elif shown:
        print(table([(*_HEADINGS, "DELETED" if trash else "LAST USED"), *map(_cells, shown)]))
        if more:
            option = " --trash" * trash
            print(f"To list more: edgechat chats{option} --limit {5 * limit}", file=sys.stderr)
    elif trash:
        print(f"The trash is empty. Deleted conversations stay there for {TRASH_DAYS} days.")
    else:
        print('There are no conversations yet. To start one: edgechat run guide "What is edgechat?"')
    return 0


def show(prefix: str, *, json: bool) -> int:
    """Run the command; return the exit code. Raises ChatNotFound and StoreError."""
    found = _with_store(lambda store: _loaded(store, prefix))
    if json:
        messages = [_message_object(turn) for turn in found.turns]
        _print_json(_object(found.chat, found.n_messages) | {"messages": messages})
    else:
        print(to_markdown(found), end="")
    return 0


def search(words: Sequence[str], *, limit: int, json: bool) -> int:
    """Run the command; return the exit code: 1 where nothing is found. Raises StoreError."""
    text = " ".join(words)
    hits = _with_store(lambda store: store.search(text, limit))
    if json:
        _print_json([_hit_object(hit) for hit in hits])
    elif hits:
        print("\n\n".join(_hit(hit, bold=styled(sys.stdout)) for hit in hits))
    else:
        print(f"No message contains {one_line(text, 60)!r}. To list all conversations: edgechat chats")
    return 0 if hits else 1


def export(prefix: str, file: str | None, *, json: bool, force: bool) -> int:
    """Run the command; return the exit code. Raises ChatNotFound, StoreError and NotWritten."""
    found = _with_store(lambda store: _loaded(store, prefix))
    text = to_json(found) if json else to_markdown(found)
    if file is None or file == _STDIO:
        print(text, end="")
    else:
        path = files.target(file, found.chat.title, ".json" if json else ".md")
        try:
            files.write(path, text, force=force)
        except NotWritten as error:
            if isinstance(error.__cause__, FileExistsError):
                raise NotWritten(error.message, hint="To overwrite it: --force") from error
            raise
        print(f"Written to {flat(as_text(str(path)))}.")
    return 0


def import_chat(file: str, *, json: bool) -> int:
    """Run the command; return the exit code. Raises NotAChat and StoreError."""
    new = parse_chat(_read(file))
    _with_store(lambda store: store.add(new.chat, new.turns))
    if json:
        _print_json(_object(new.chat, sum(turn.role != "system" for turn in new.turns)))
    else:
        print(f"{new.chat.id[:8]}  {one_line(new.chat.title)}")
        print(f"Continue it: edgechat run MODEL --chat {new.chat.id[:8]}")
    return 0


def rename(prefix: str, title: str) -> int:
    """Run the command; return the exit code. Raises ChatNotFound and StoreError."""

    async def done(store: Store) -> str:
        return await store.rename((await store.find(prefix)).id, title)

    print(f"Renamed to {one_line(_with_store(done))!r}.")
    return 0


def pin(prefix: str, *, off: bool) -> int:
    """Run the command; return the exit code. Raises ChatNotFound and StoreError."""

    async def done(store: Store) -> Chat:
        chat = await store.find(prefix)
        await store.update_chat(chat.id, pinned=not off)
        return chat

    chat = _with_store(done)
    print(f"{'Unpinned' if off else 'Pinned'}: {one_line(chat.title)}")
    return 0


def rm(prefixes: Sequence[str], *, yes: bool, now: bool) -> int:
    """Run the command; return the exit code: 1 where nothing was deleted. Raises EdgechatError."""
    found = _with_store(lambda store: _removable(store, prefixes, now=now))
    for one in found:
        print(f"{one.chat.id[:8]}  {one_line(one.chat.title)} ({counted(one.n_messages)})")
    ids = [one.chat.id for one in found]
    if not yes:
        what = "it" if len(ids) == 1 else f"these {len(ids)}"
        question = f"Delete {what} permanently?" if now else f"Delete {what}?"
        try:
            refusal = refused(question, "Nothing was deleted", "Add --yes to delete.")
        except KeyboardInterrupt:
            print("\nNothing was deleted.")
            raise
        if refusal is not None:
            return refusal
    _with_store(lambda store: store.delete(*ids) if now else store.trash(*ids))
    short = ids[0][:8]
    kept = f"Moved to the trash for {TRASH_DAYS} days. To undo: edgechat chats restore {short}"
    print("Deleted permanently." if now else kept)
    return 0


def restore(prefixes: Sequence[str]) -> int:
    """Run the command; return the exit code. Raises ChatNotFound and StoreError."""

    async def done(store: Store) -> list[Chat]:
        found = {chat.id: chat for chat in [await store.find(one, trashed=True) for one in prefixes]}
        for chat_id in found:
            await store.restore(chat_id)
        return list(found.values())

    for chat in _with_store(done):
        print(f"Restored: {chat.id[:8]}  {one_line(chat.title)}")
    return 0


def _with_store(work: Callable[[Store], Awaitable[T]]) -> T:
    import asyncio

    async def done() -> T:
        store = await Store.open(store_path())
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(done())


async def _loaded(store: Store, prefix: str) -> Conversation:
    return await Conversation.load(store, (await store.find(prefix)).id)


async def _removable(store: Store, prefixes: Sequence[str], *, now: bool) -> list[Conversation]:
    """Return the conversations that are to go; `now` they may be in the trash already."""
    chats = [await store.find(prefix, trashed=None if now else False) for prefix in prefixes]
    loaded = [await Conversation.load(store, one.id, trashed=one.trashed_at is not None) for one in chats]
    found = {one.chat.id: one for one in loaded}
    for one in found.values():
        if one.written_elsewhere:
            raise ChatBusy(
                f"Another edgechat is generating an answer in {one.chat.id[:8]}: {one.chat.title}.",
                hint="Stop it there, or wait until it has finished. Nothing was deleted.",
            )
    return list(found.values())


def _cells(one: Listed) -> tuple[str, ...]:
    return (
        one.prefix,
        one_line(one.chat.title, _TITLE),
        one_line(model_name(one.chat), _MODEL),
        str(one.n_messages),
        ago(time.time() - (one.chat.trashed_at or one.chat.updated_at)),
    )


def _hit(hit: Hit, *, bold: bool) -> str:
    when = datetime.fromtimestamp(hit.created_at).strftime("%Y-%m-%d %H:%M")
    who = {"user": "you", "assistant": "answer"}.get(hit.role, hit.role) if hit.turn_id else "title"
    line, at = "", 0
    for start, end in hit.marks if bold else ():
        line += f"{hit.snippet[at:start]}{_BOLD}{hit.snippet[start:end]}{_PLAIN}"
        at = end
    return (
        f"{hit.chat.id[:8]}  {one_line(hit.chat.title, _TITLE)} · {who} · {when}\n  {line}{hit.snippet[at:]}"
    )


def _hit_object(hit: Hit) -> dict[str, Any]:
    return {
        "chat": hit.chat.id,
        "title": hit.chat.title,
        "turn": hit.turn_id or None,
        "role": hit.role,
        "created_at": hit.created_at,
        "snippet": hit.snippet,
        "marks": hit.marks,
    }


def _read(file: str) -> bytes:
    return sys.stdin.buffer.read(MOST_BYTES + 1) if file == _STDIO else files.read(file)


def _object(chat: Chat, n_messages: int) -> dict[str, Any]:
    return {
        "id": chat.id,
        "title": chat.title,
        "model": chat.model,
        "front": chat.front,
        "n_messages": n_messages,
        "date": chat.date,
        "created_at": chat.created_at,
        "updated_at": chat.updated_at,
        "pinned": chat.pinned,
        "trashed_at": chat.trashed_at,
    }


def _message_object(turn: Turn) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(turn)
    return {name: value for name, value in found.items() if name not in ("chat_id", "parent_id")}


def _print_json(found: object) -> None:
    print(escaped_json(json_module.dumps(found, ensure_ascii=False)))
