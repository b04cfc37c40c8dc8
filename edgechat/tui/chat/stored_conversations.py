"""What can be done with a stored conversation: rename, pin, delete and restore, export and import."""

from __future__ import annotations

import asyncio

from edgechat.base.errors import ChatBusy, ChatNotFound
from edgechat.base.text import one_line
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.export import export_to_file, read
from edgechat.chat.import_export.importing import add_chat, parse_chat
from edgechat.chat.records import TRASH_DAYS
from edgechat.tui.chat.controller import ChatController


async def rename(controller: ChatController, chat_id: str, title: str) -> None:
    """Give a conversation another title. Raises EdgechatError."""
    shown = controller.shown
    if shown.id == chat_id and shown.conversation is not None:
        await shown.conversation.rename(title)
    else:
        await (await controller.session.store()).rename(chat_id, title)


async def pin(controller: ChatController, chat_id: str, pinned: bool) -> None:
    """Pin a conversation to the top of the list, or unpin it. Raises EdgechatError."""
    shown = controller.shown
    if shown.id == chat_id and shown.conversation is not None:
        await shown.conversation.pin(pinned)
    else:
        await (await controller.session.store()).update_chat(chat_id, pinned=pinned)


async def delete(controller: ChatController, chat_id: str, *, ask: bool = False) -> None:
    """Move a conversation to the trash, with `ask` after a question. Raises EdgechatError."""
    store = await controller.session.store()
    if chat_id in controller.answering:
        raise ChatBusy("An answer is being generated there.", hint="Stop it first: Escape.")
    title = one_line((await store.find(chat_id)).title, 50)
    lasts = f"It stays in the trash for {TRASH_DAYS} days." if store.lasting else ""
    if ask and not await _confirm(controller, f"Delete “{title}”?\n\n{lasts}"):
        return
    await store.trash(chat_id)
    controller.session.forget(chat_id)
    controller.deleted.append(chat_id)
    if controller.shown.id == chat_id:
        controller.show_new()
    controller.view.show_message(f"Deleted “{title}”. Ctrl+Z undoes this. {lasts}", seconds=8)
    controller.view.refresh_chat()


async def undo_delete(controller: ChatController, *, focus: bool = True) -> None:
    """Restore the conversation that was deleted last, and show it. Raises EdgechatError."""
    if controller.deleted:
        await restore(controller, controller.deleted[-1], focus=focus)


async def restore(controller: ChatController, chat_id: str, *, focus: bool = True) -> None:
    """Restore a conversation from the trash, and show it. Raises EdgechatError.

    focus: whether the prompt gets the keys.
    """
    store = await controller.session.store()
    try:
        await store.restore(chat_id)
    except ChatNotFound:
        _forget_deleted(controller, chat_id)
        raise
    _forget_deleted(controller, chat_id)
    await controller.open(chat_id, focus=focus)


async def purge(controller: ChatController, chat_id: str) -> None:
    """Ask, then delete a conversation in the trash for good. Raises EdgechatError."""
    store = await controller.session.store()
    title = one_line((await store.find(chat_id, trashed=True)).title, 50)
    if await _confirm(controller, f"Delete “{title}” permanently? It cannot be restored."):
        await store.delete(chat_id)
        _forget_deleted(controller, chat_id)


async def _confirm(controller: ChatController, question: str) -> bool:
    return await controller.view.confirm(question.strip(), yes="Delete it", no="Keep it")


def _forget_deleted(controller: ChatController, chat_id: str) -> None:
    controller.deleted = [deleted for deleted in controller.deleted if deleted != chat_id]
    controller.view.refresh_chat()


async def export(controller: ChatController, chat_id: str, name: str = "") -> None:
    """Write a conversation to a file, as JSON if its name says so, else as Markdown. Raises EdgechatError."""
    conversation = await Conversation.load(await controller.session.store(), chat_id)
    path = await asyncio.to_thread(export_to_file, conversation, name)
    controller.view.show_message(f"Written to {one_line(str(path), 300)}", seconds=8)


async def import_file(controller: ChatController, name: str) -> None:
    """Add a conversation from a file to the store, and show it. Raises EdgechatError."""
    new = await asyncio.to_thread(lambda: parse_chat(read(name)))
    await add_chat(await controller.session.store(), new)
    await controller.open(new.chat.id)
