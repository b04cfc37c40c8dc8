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
attachments and images of a question, and the figures and the error of a reply. `search` prints a list of
objects, best first: chat (an id), title, turn (an id, or null if the words are in the title), role,
created_at, snippet, and marks: the positions of the words in the snippet, as [from, to] in characters.
`import` prints the imported conversation as such an object.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from edgechat.base.errors import ChatBusy, NotWritten
from edgechat.base.text import ago, flat, local_time, one_line
from edgechat.chat.records import TRASH_DAYS, Chat, Hit, Listed, Turn
from edgechat.chat.storage import statements
from edgechat.chat.storage.file import BUSY_MS, connect_to_read, store_error, store_path
from edgechat.cli.output.layout import styled, table
from edgechat.cli.terminal_io import as_text, confirm, print_json, read_piped

if TYPE_CHECKING:  # what a list does without takes three times as long to import as the rest
    from edgechat.chat.conversation import Conversation
    from edgechat.chat.storage.store import Store

T = TypeVar("T")

_HEADINGS = ("ID", "TITLE", "MODEL", "MESSAGES")
_TITLE_WIDTH, _MODEL_WIDTH = 40, 24
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_STDIO = "-"


def list_chats(*, limit: int, json: bool, trash: bool) -> None:
    """List conversations. Raises StoreError."""
    chats = _listed(limit + 1, trashed=trash)
    shown = chats[:limit]
    if json:
        print_json([_object(listed.chat, listed.n_messages) for listed in shown])
    elif shown:
        print(table([(*_HEADINGS, "DELETED" if trash else "LAST USED"), *map(_cells, shown)]))
        if len(chats) > limit:
            option = " --trash" * trash
            print(f"To list more: edgechat chats{option} --limit {5 * limit}", file=sys.stderr)
    elif trash:
        print(f"The trash is empty. Deleted conversations stay there for {TRASH_DAYS} days.")
    else:
        print('There are no conversations yet. To start one: edgechat run guide "What is edgechat?"')


def _listed(limit: int, *, trashed: bool) -> list[Listed]:
    """Return the first conversations, or those in the trash. Raises StoreError."""
    if trashed:  # opening the store deletes what is too old
        return with_store(lambda store: store.listed(limit, trashed=True), only_read=True)
    # Without the store, whose event loop takes longer to import than the rest of the command.
    path = store_path()
    try:
        with contextlib.closing(connect_to_read(path, busy_ms=BUSY_MS)) as db:
            return statements.listed(db, limit)
    except (sqlite3.Error, OSError) as error:
        raise store_error(path, error) from error


def show(prefix: str, *, json: bool) -> None:
    """Print a conversation. Raises ChatNotFound and StoreError."""
    from edgechat.chat.import_export.export import to_markdown

    conversation = _load(prefix)
    if json:
        messages = [_message_object(turn) for turn in conversation.turns]
        print_json(_object(conversation.chat, conversation.n_messages) | {"messages": messages})
    else:
        print(to_markdown(conversation), end="")


def search(words: Sequence[str], *, limit: int, json: bool) -> int:
    """Print what a search finds; return the exit code: 1 if nothing is found. Raises StoreError."""
    text = " ".join(words)
    hits = with_store(lambda store: store.search(text, limit), only_read=True)
    if json:
        print_json([_hit_object(hit) for hit in hits])
    elif hits:
        print("\n\n".join(_hit(hit, bold=styled(sys.stdout)) for hit in hits))
    else:
        print(f"No message contains {one_line(text, 60)!r}. To list all conversations: edgechat chats")
    return 0 if hits else 1


def export(prefix: str, file: str | None, *, json: bool, force: bool) -> None:
    """Write a conversation to a file, or print it. Raises ChatNotFound, StoreError and NotWritten."""
    from edgechat.chat.import_export import export
    from edgechat.chat.import_export.export import to_json, to_markdown

    conversation = _load(prefix)
    if file is None or file == _STDIO:
        print(to_json(conversation) if json else to_markdown(conversation), end="")
        return
    path = export.target(file, conversation.chat.title, ".json" if json else ".md")
    try:
        export.write_chat(conversation, path, as_json=json, force=force)
    except NotWritten as error:
        if isinstance(error.__cause__, FileExistsError):
            raise NotWritten(error.message, hint="To overwrite it: --force") from error
        raise
    print(f"Written to {flat(as_text(str(path)))}.")


def import_chat(file: str, *, json: bool) -> None:
    """Store an exported conversation. Raises NotAChat and StoreError."""
    from edgechat.chat.import_export import export
    from edgechat.chat.import_export.importing import MOST_BYTES, add_chat, parse_chat

    new = parse_chat(read_piped(MOST_BYTES + 1) if file == _STDIO else export.read(file))
    with_store(lambda store: add_chat(store, new))
    if json:
        print_json(_object(new.chat, sum(turn.role != "system" for turn in new.turns)))
    else:
        print(f"{new.chat.id[:8]}  {one_line(new.chat.title)}")
        print(f"Continue it: edgechat run MODEL --chat {new.chat.id[:8]}")


def rename(prefix: str, title: str) -> None:
    """Change the title of a conversation. Raises ChatNotFound and StoreError."""

    async def rename_chat(store: Store) -> str:
        return await store.rename((await store.find(prefix)).id, title)

    print(f"Renamed to {one_line(with_store(rename_chat))!r}.")


def pin(prefix: str, *, off: bool) -> None:
    """Pin or unpin a conversation. Raises ChatNotFound and StoreError."""

    async def pin_chat(store: Store) -> Chat:
        chat = await store.find(prefix)
        await store.update_chat(chat.id, pinned=not off)
        return chat

    chat = with_store(pin_chat)
    print(f"{'Unpinned' if off else 'Pinned'}: {one_line(chat.title)}")


def rm(prefixes: Sequence[str], *, yes: bool, now: bool) -> None:
    """Delete conversations, `now` for good, after asking. Raises EdgechatError."""
    from edgechat.chat.import_export.export import counted

    conversations = with_store(lambda store: _removable(store, prefixes, now=now))
    for conversation in conversations:
        chat, count = conversation.chat, counted(conversation.n_messages)
        print(f"{chat.id[:8]}  {one_line(chat.title)} ({count})")
    ids = [conversation.chat.id for conversation in conversations]
    if not yes:
        what = "it" if len(ids) == 1 else f"these {len(ids)}"
        question = f"Delete {what} permanently?" if now else f"Delete {what}?"
        try:
            confirm(question, "Nothing was deleted", "Add --yes to delete.")
        except KeyboardInterrupt:
            print("\nNothing was deleted.")
            raise
    with_store(lambda store: store.delete(*ids) if now else store.trash(*ids))
    if now:
        print("Deleted permanently.")
    else:
        print(f"Moved to the trash for {TRASH_DAYS} days. To undo: edgechat chats restore {ids[0][:8]}")


def restore(prefixes: Sequence[str]) -> None:
    """Restore conversations from the trash. Raises ChatNotFound and StoreError."""

    async def restore_chats(store: Store) -> list[Chat]:
        chats = {chat.id: chat for chat in [await store.find(prefix, trashed=True) for prefix in prefixes]}
        for chat_id in chats:
            await store.restore(chat_id)
        return list(chats.values())

    for chat in with_store(restore_chats):
        print(f"Restored: {chat.id[:8]}  {one_line(chat.title)}")


def with_store(work: Callable[[Store], Awaitable[T]], *, only_read: bool = False) -> T:
    """Open the store of conversations for `work`, and return its result. Raises StoreError.

    only_read: open a copy if it cannot be written.
    """
    import asyncio

    from edgechat.chat.storage.store import Store

    async def open_and_work() -> T:
        store = await (Store.open_to_read if only_read else Store.open)(store_path())
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(open_and_work())


def _load(prefix: str) -> Conversation:
    from edgechat.chat.conversation import Conversation

    async def load(store: Store) -> Conversation:
        return await Conversation.load(store, (await store.find(prefix)).id)

    return with_store(load, only_read=True)


async def _removable(store: Store, prefixes: Sequence[str], *, now: bool) -> list[Conversation]:
    """Return the conversations to delete, each once; `now` they may be in the trash already."""
    from edgechat.chat.conversation import Conversation

    chats = [await store.find(prefix, trashed=None if now else False) for prefix in prefixes]
    conversations: dict[str, Conversation] = {}
    for chat in chats:
        conversation = await Conversation.load(store, chat.id, trashed=chat.trashed_at is not None)
        if conversation.written_elsewhere:
            raise ChatBusy(
                f"Another edgechat is generating an answer in {chat.id[:8]}: {chat.title}.",
                hint="Stop it there, or wait until it has finished. Nothing was deleted.",
            )
        conversations[chat.id] = conversation
    return list(conversations.values())


def _cells(listed: Listed) -> tuple[str, ...]:
    chat = listed.chat
    return (
        listed.prefix,
        one_line(chat.title, _TITLE_WIDTH),
        one_line(chat.model_name, _MODEL_WIDTH),
        str(listed.n_messages),
        ago(time.time() - (chat.trashed_at or chat.updated_at)),
    )


def _hit(hit: Hit, *, bold: bool) -> str:
    when = local_time(hit.created_at).strftime("%Y-%m-%d %H:%M")
    who = {"user": "you", "assistant": "answer"}.get(hit.role, hit.role) if hit.turn_id else "title"
    line, at = "", 0
    for start, end in hit.marks if bold else ():
        line += f"{hit.snippet[at:start]}{_BOLD}{hit.snippet[start:end]}{_PLAIN}"
        at = end
    title = one_line(hit.chat.title, _TITLE_WIDTH)
    return f"{hit.chat.id[:8]}  {title} · {who} · {when}\n  {line}{hit.snippet[at:]}"


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


def _object(chat: Chat, n_messages: int) -> dict[str, Any]:
    """Return a conversation as --json prints it."""
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
    import msgspec

    fields = msgspec.to_builtins(turn)
    return {name: value for name, value in fields.items() if name not in ("chat_id", "parent_id")}
