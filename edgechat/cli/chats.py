"""`edgechat chats`: what is kept of conversations, to be listed, read and deleted.

With --json the list is one of objects, the conversation that was used last first:

    id, title
    model                   the one that wrote last
    front                   where it was held last: "app", or "run" for the command line
    n_messages              questions and answers, each counted; not the system prompt
    date                    the day on which it began, as the model is told it
    created_at, updated_at  seconds since 1970

and `show` prints one such object, with `messages`: id, role, content, thinking, state, created_at, and the
figures and the error of a reply.
"""

from __future__ import annotations

import json as json_module
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from edgechat.chat.conversation import Conversation
from edgechat.chat.records import Chat, Listed, Turn
from edgechat.chat.store import Store, store_path
from edgechat.cli.edge import refused
from edgechat.cli.sheet import table
from edgechat.errors import ChatNotFound
from edgechat.text import ago, escaped_json, one_line, printable

T = TypeVar("T")

_HEADINGS = ("ID", "TITLE", "MODEL", "MESSAGES", "LAST USED")
_TITLE, _MODEL = 40, 24
_ENDINGS = {
    "stopped": "(stopped here)",
    "interrupted": "(interrupted here)",
    "failed": "(no reply came)",
    "streaming": "(still being written)",
}


def list_chats(*, limit: int, json: bool) -> int:
    """Run the command; return the exit code. Raises StoreError."""
    found = _with_store(lambda store: store.listed(limit + 1))
    shown, more = found[:limit], len(found) > limit
    if json:
        _print_json([_object(one.chat, one.n_messages) for one in shown])
    elif shown:
        print(table([_HEADINGS, *map(_cells, shown)]))
        if more:
            print(f"There are more: edgechat chats --limit {5 * limit}", file=sys.stderr)
    else:
        print('There are no conversations yet. This begins one: edgechat run guide "What is edgechat?"')
    return 0


def show(prefix: str, *, json: bool) -> int:
    """Run the command; return the exit code. Raises ChatNotFound and StoreError."""
    found = _with_store(lambda store: _loaded(store, prefix))
    if json:
        messages = [_message_object(turn) for turn in found.turns]
        _print_json(_object(found.chat, found.n_messages) | {"messages": messages})
    else:
        print(printable("\n\n".join(_paragraphs(found))))
    return 0


def rm(prefixes: Sequence[str], *, yes: bool) -> int:
    """Run the command; return the exit code: 1 where nothing was deleted. Raises EdgechatError."""
    found = _with_store(lambda store: _removable(store, prefixes))
    for one in found:
        print(printable(f"{one.chat.id[:8]}  {one.chat.title} ({counted(one.n_messages)})"))
    if not yes:
        question = "Delete it?" if len(found) == 1 else f"Delete these {len(found)}?"
        try:
            refusal = refused(question, "Nothing was deleted", "Add --yes to delete.")
        except KeyboardInterrupt:
            print("\nNothing was deleted.")
            raise
        if refusal is not None:
            return refusal
    _with_store(lambda store: _delete(store, [one.chat for one in found]))
    print("Deleted.")
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


async def _removable(store: Store, prefixes: Sequence[str]) -> list[Conversation]:
    found = {one.chat.id: one for one in [await _loaded(store, prefix) for prefix in prefixes]}
    for one in found.values():
        if one.being_written:
            raise ChatNotFound(
                f"Another edgechat is writing an answer in {one.chat.id[:8]}: {one.chat.title}.",
                hint="Stop it there, or wait for its end. Nothing was deleted.",
            )
    return list(found.values())


async def _delete(store: Store, chats: Sequence[Chat]) -> None:
    for chat in chats:
        await store.delete(chat.id)


def _cells(one: Listed) -> tuple[str, ...]:
    return (
        one.prefix,
        one_line(one.chat.title, _TITLE),
        one_line(_model(one.chat), _MODEL),
        str(one.n_messages),
        ago(time.time() - one.chat.updated_at),
    )


def _paragraphs(found: Conversation) -> Iterator[str]:
    chat = found.chat
    yield f"# {chat.title}"
    yield f"{chat.id} · begun on {chat.date} · {counted(found.n_messages)} · last model: {_model(chat)}"
    # Models may take turns in a chat, and only the last one is known.
    speakers = {"system": "System prompt", "user": "You", "assistant": "Answer"}
    for turn in found.turns:
        yield f"## {speakers[turn.role]}"
        if turn.content:
            yield turn.content.strip("\n")
        if turn.state in _ENDINGS:
            yield _ENDINGS[turn.state]


def _model(chat: Chat) -> str:
    return os.path.basename(chat.model) if os.path.isabs(chat.model) else chat.model


def counted(messages: int) -> str:
    """Return how many messages these are, in words."""
    return "1 message" if messages == 1 else f"{messages} messages"


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
    }


def _message_object(turn: Turn) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(turn)
    return {name: value for name, value in found.items() if name not in ("chat_id", "parent_id")}


def _print_json(found: object) -> None:
    print(escaped_json(json_module.dumps(found, ensure_ascii=False)))
