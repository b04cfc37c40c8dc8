"""`edgechat chats`: list, search, show, export, import and delete stored conversations.

With --json, a list of objects is printed, starting with the most recently used conversation:

    id, title
    model                   the model that wrote the latest reply
    front                   where it was last used: "app", or "run" for the command line
    n_messages              the number of questions and answers, without the system prompt
    date                    the day it was started, which is also given to the model
    created_at, updated_at  seconds since 1970

    pinned                  whether it is pinned to the top of the app's list
    trashed_at              when it was moved to the trash, or null

`show` prints one such object, with `messages`: id, role, content, thinking, state, created_at; for a
question, its attachments and images; for a reply, its figures and error. `search` prints a list of
objects, best first: chat (an id), title, turn (an id, or null if the title matched), role,
created_at, snippet, and marks: the positions of the words in the snippet, as [from, to] in characters.
`import` prints one object, for the imported conversation.
"""

from __future__ import annotations

import contextlib
import difflib
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.exceptions import Exit

from edgechat.base.errors import ChatBusy, NotWritten
from edgechat.base.text import ago, flat, local_time, one_line
from edgechat.chat.records import TRASH_DAYS, Chat, Hit, Listed, Turn
from edgechat.chat.storage import statements
from edgechat.chat.storage.file import BUSY_MS, connect_to_read, store_error, store_path
from edgechat.cli import completion
from edgechat.cli.declaring import TEXT, CliGroup, Number, argument, option, suggest
from edgechat.cli.options import MOST, json_option
from edgechat.cli.terminal_io import BOLD, PLAIN, as_text, confirm, print_json, read_piped, styled, table

if TYPE_CHECKING:  # importing them takes three times as long as listing conversations
    from edgechat.chat.conversation import Conversation
    from edgechat.chat.storage.store import Store

T = TypeVar("T")

_HEADINGS = ("ID", "TITLE", "MODEL", "MESSAGES")
_TITLE_WIDTH, _MODEL_WIDTH = 40, 24
_STDIO = "-"

_SYNONYMS = {
    "rm": ("remove", "delete", "del", "forget", "clear"),
    "--trash": ("trash", "bin", "deleted"),
    "restore": ("undelete", "recover", "back", "undo"),
    "show": ("cat", "print", "open", "view", "read", "get"),
    "search": ("find", "grep", "look"),
    "export": ("save", "write", "dump"),
    "import": ("load", "add"),
    "rename": ("title", "name", "mv"),
    "pin": ("unpin", "star", "keep"),
    "": ("list", "ls"),
}


class ChatsGroup(CliGroup):
    """A group that suggests, for example, `edgechat chats rm 1a2b` for `edgechat chats delete 1a2b`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """See `click.Group.resolve_command`."""
        word = args[0]
        if ctx.resilient_parsing or self.get_command(ctx, word) is not None:
            return super().resolve_command(ctx, args)
        command = _probable_command(word)
        if command is not None:
            suggest(ctx, word, ["edgechat", "chats", *filter(None, [command]), *args[1:]])
        if _is_id(word):
            suggest(ctx, word, ["edgechat", "chats", "show", *args])
        return ctx.fail(f"No such command {word!r}. `edgechat chats --help` lists the commands.")


def _probable_command(word: str) -> str | None:
    """Return the command that the user probably meant by an unknown word.

    Returns "" for the command that lists conversations, and None if no command is similar.
    """
    commands = {name: command for command, names in _SYNONYMS.items() for name in (*names, command) if name}
    if word.lower() in commands:
        return commands[word.lower()]
    similar = [] if _is_id(word) else difflib.get_close_matches(word.lower(), commands, n=1)
    return commands[similar[0]] if similar else None


def _is_id(word: str) -> bool:
    return len(word) >= 4 and all(letter in "0123456789abcdef" for letter in word.lower())


_id = argument(
    "chat",
    metavar="ID",
    help="An id shown by `edgechat chats`, or its first characters.",
    type=TEXT,
    complete=completion.chats,
)


@click.group("chats", cls=ChatsGroup, invoke_without_command=True)
@option("--limit", type=Number(int, min=1, max=MOST), default=20, help="The most results to show.")
@option("--trash", is_flag=True, help="List the conversations that were deleted in the last 30 days.")
@json_option
@click.pass_context
def chats(context: click.Context, limit: int, trash: bool, json: bool) -> None:
    """List stored conversations, latest first; search, show, export or delete them."""
    if context.invoked_subcommand is not None:
        if json:
            example = f"edgechat chats {context.invoked_subcommand} ID --json"
            raise click.BadParameter(f"must follow the command: {example}", param_hint="--json")
        return
    found = _listed(limit + 1, trashed=trash)
    shown = found[:limit]
    if json:
        print_json([_object(listed.chat, listed.n_messages) for listed in shown])
    elif shown:
        print(table([(*_HEADINGS, "DELETED" if trash else "LAST USED"), *map(_cells, shown)]))
        if len(found) > limit:
            print(f"To list more: edgechat chats{' --trash' * trash} --limit {5 * limit}", file=sys.stderr)
    elif trash:
        print(f"The trash is empty. Deleted conversations stay there for {TRASH_DAYS} days.")
    else:
        print('There are no conversations yet. To start one: edgechat run guide "What is edgechat?"')


@chats.command("search")
@argument(
    "words",
    nargs=-1,
    required=True,
    metavar="WORDS",
    help="All of them must occur; the last can be the beginning of a word.",
    type=TEXT,
)
@option("--limit", type=Number(int, min=1, max=1000), default=20, help="The most results to show.")
@json_option
def search(words: tuple[str, ...], limit: int, json: bool) -> None:
    """Search all conversations, best matches first."""
    text = " ".join(words)
    hits = with_store(lambda store: store.search(text, limit), only_read=True)
    if json:
        print_json([_hit_object(hit) for hit in hits])
    elif hits:
        print("\n\n".join(_hit(hit, bold=styled(sys.stdout)) for hit in hits))
    else:
        print(f"No message contains {one_line(text, 60)!r}. To list all conversations: edgechat chats")
    raise Exit(0 if hits else 1)


@chats.command("show")
@_id
@json_option
def show(chat: str, json: bool) -> None:
    """Print a conversation as Markdown."""
    from edgechat.chat.import_export.export import to_markdown

    conversation = _load(chat)
    if json:
        messages = [_message_object(turn) for turn in conversation.turns]
        print_json(_object(conversation.chat, conversation.n_messages) | {"messages": messages})
    else:
        print(to_markdown(conversation), end="")


@chats.command("rename")
@_id
@argument("title", metavar="TITLE", help='"" takes the first words of the conversation.', type=TEXT)
def rename(chat: str, title: str) -> None:
    """Change the title of a conversation."""

    async def rename_chat(store: Store) -> str:
        return await store.rename((await store.find(chat)).id, title)

    print(f"Renamed to {one_line(with_store(rename_chat))!r}.")


@chats.command("pin")
@_id
@option("--off", is_flag=True, help="Unpin it.")
def pin(chat: str, off: bool) -> None:
    """Keep a conversation at the top of the app's list."""

    async def pin_chat(store: Store) -> Chat:
        found = await store.find(chat)
        await store.update_chat(found.id, pinned=not off)
        return found

    print(f"{'Unpinned' if off else 'Pinned'}: {one_line(with_store(pin_chat).title)}")


@chats.command("export")
@_id
@argument(
    "file", required=False, metavar="FILE", help="The file to write; by default, the conversation is printed."
)
@option("--json", is_flag=True, help="Write JSON, which can be imported again, instead of Markdown.")
@option("--force", is_flag=True, help="Overwrite an existing file.")
def export(chat: str, file: str | None, json: bool, force: bool) -> None:
    """Write a conversation to a file, as Markdown or as JSON."""
    from edgechat.chat.import_export import export as files
    from edgechat.chat.import_export.export import to_json, to_markdown

    conversation = _load(chat)
    if file is None or file == _STDIO:
        print(to_json(conversation) if json else to_markdown(conversation), end="")
        return
    path = files.target(file, conversation.chat.title, ".json" if json else ".md")
    try:
        files.write_chat(conversation, path, as_json=json, force=force)
    except NotWritten as error:
        if isinstance(error.__cause__, FileExistsError):
            raise NotWritten(error.message, hint="To overwrite it: --force") from error
        raise
    print(f"Written to {flat(as_text(str(path)))}.")


@chats.command("import")
@argument("file", metavar="FILE", help="An exported JSON file; - reads standard input.")
@json_option
def import_chat(file: str, json: bool) -> None:
    """Import an exported conversation, or a list of messages in the format of OpenAI's API."""
    from edgechat.chat.import_export import export as files
    from edgechat.chat.import_export.importing import MOST_BYTES, add_chat, parse_chat

    new = parse_chat(read_piped(MOST_BYTES + 1) if file == _STDIO else files.read(file))
    with_store(lambda store: add_chat(store, new))
    if json:
        print_json(_object(new.chat, sum(turn.role != "system" for turn in new.turns)))
    else:
        print(f"{new.chat.id[:8]}  {one_line(new.chat.title)}")
        print(f"Continue it: edgechat run MODEL --chat {new.chat.id[:8]}")


@chats.command("rm")
@argument(
    "chats",
    nargs=-1,
    required=True,
    metavar="ID",
    help="An id shown by `edgechat chats`, or its first characters.",
    complete=completion.chats,
    type=TEXT,
)
@option("--now", is_flag=True, help="Delete permanently; otherwise, the trash keeps them for 30 days.")
@option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def rm(chats: tuple[str, ...], now: bool, yes: bool) -> None:
    """Delete conversations, and their saved KV state."""
    from edgechat.chat.import_export.export import counted

    conversations = with_store(lambda store: _removable(store, chats, now=now))
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


@chats.command("restore")
@argument(
    "chats",
    nargs=-1,
    required=True,
    metavar="ID",
    help="An id shown by `edgechat chats --trash`, or its first characters.",
    complete=completion.trashed_chats,
    type=TEXT,
)
def restore(chats: tuple[str, ...]) -> None:
    """Restore conversations from the trash."""

    async def restore_chats(store: Store) -> list[Chat]:
        found = {chat.id: chat for chat in [await store.find(prefix, trashed=True) for prefix in chats]}
        for chat_id in found:
            await store.restore(chat_id)
        return list(found.values())

    for chat in with_store(restore_chats):
        print(f"Restored: {chat.id[:8]}  {one_line(chat.title)}")


def _listed(limit: int, *, trashed: bool) -> list[Listed]:
    """Return the most recent conversations, either stored or in the trash. Raises StoreError."""
    if trashed:  # opening the store deletes any that have expired
        return with_store(lambda store: store.listed(limit, trashed=True), only_read=True)
    # Do not use the store: importing its event loop takes longer than the rest of this command.
    path = store_path()
    try:
        with contextlib.closing(connect_to_read(path, busy_ms=BUSY_MS)) as db:
            return statements.listed(db, limit)
    except (sqlite3.Error, OSError) as error:
        raise store_error(path, error) from error


def with_store(work: Callable[[Store], Awaitable[T]], *, only_read: bool = False) -> T:
    """Run `work` on the conversation store and return its result. Raises StoreError.

    only_read: whether `work` only reads; a store that is not writable is then opened as a copy.
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
    """Return the conversations to delete, without duplicates. now: whether to include those in the trash."""
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
        line += f"{hit.snippet[at:start]}{BOLD}{hit.snippet[start:end]}{PLAIN}"
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
