"""The chat's commands: slash commands, and actions on turns and stored conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgechat.base.errors import ChatBusy, ChatNotFound, EdgechatError, SettingsError
from edgechat.base.text import one_line, printable
from edgechat.chat import parameters
from edgechat.chat.attachments import cited, passages_in
from edgechat.chat.commands import check
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export import export as files
from edgechat.chat.import_export.importing import add_chat, parse_chat
from edgechat.chat.records import TRASH_DAYS, Attachment, Chat, Turn
from edgechat.documents.registry import names as document_names
from edgechat.settings import SamplingDefaults
from edgechat.tui.chat.controller import ChatController
from edgechat.tui.chat.views import ChatView

ACTIONS = {
    "chats": "screen.conversations",
    "trash": "screen.trash",
    "model": "screen.switch_model",
    "models": "screen.models",
    "parameters": "screen.parameters",
    "tools": "screen.tools",
    "docs": "screen.documents",
    "thoughts": "screen.thoughts",
    "engine": "screen.engine_room",
    "settings": "app.settings",
    "help": "app.help",
    "quit": "app.quit",
    # The functions below implement these commands; the actions only serve to look up their keys.
    "new": "screen.new_chat",
    "retry": "screen.retry",
    "search": "screen.search",
    "think": "screen.switch_thinking",
}
"""Screen and app actions, keyed by the slash command that runs them or has the same effect."""


async def run_command(controller: ChatController, name: str, argument: str) -> None:
    """Run a command. If it fails, show the error and, if the prompt is empty, put the command back there."""
    try:
        check(name, argument, "app")
        await _run(controller, name, argument)
    except EdgechatError as error:
        controller.view.show_error(error)
        if not controller.view.prompt.text:
            controller.view.prompt.fill(f"/{name} {argument}")


async def _run(controller: ChatController, name: str, argument: str) -> None:
    view, shown = controller.view, controller.shown
    match name:
        case "new":
            controller.begin_new()
        case "retry":
            controller.retry()
        case "continue":
            controller.continue_reply()
        case "copy":
            copy_reply(controller)
        case "rename":
            await rename(controller, _stored(controller), argument)
            view.show_message(f"Renamed to “{one_line(argument, 60)}”.")
        case "pin":
            chat_id = _stored(controller)
            pinned = shown.conversation is not None and not shown.conversation.chat.pinned
            await pin(controller, chat_id, pinned)
            view.show_message("Pinned to the top of the list." if pinned else "Unpinned.")
        case "export":
            await export(controller, _stored(controller), argument)
        case "import":
            await import_file(controller, argument)
        case "delete":
            await delete(controller, _stored(controller))
        case "model" if argument:
            await controller.switch_model(argument)
        case "guide":
            controller.ask_guide(argument)
        case "pull":
            controller.models.pulls.start(argument)
        case "prompt":
            _put_saved_prompt(controller, argument)
        case "docs" if argument:
            is_folder = await asyncio.to_thread(parameters.is_folder_of_documents, argument)
            if is_folder:
                controller.documents.read(shown, argument)
            else:
                view.show_message(await parameters.adjust(controller.session, shown, name, argument))
        case _ if name in parameters.ADJUSTING_COMMANDS and (argument or name not in ("tools", "docs")):
            view.show_message(await parameters.adjust(controller.session, shown, name, argument))
        case _:
            await _run_on_screen(view, name, argument)
            return
    view.refresh_chat()


async def _run_on_screen(view: ChatView, name: str, argument: str) -> None:
    """Run a command that affects only the screen. Raises EdgechatError."""
    match name:
        case "search":
            await view.search(argument)
        case "find":
            if not view.find(argument):
                raise EdgechatError(
                    f"“{one_line(argument, 60)}” is not in this conversation.",
                    hint="To search all conversations: Ctrl+F",
                )
        case "attach":
            await view.pane.attach_file(argument)
        case "image":
            await view.pane.attach_image(argument)
        case "editor":
            await view.edit_prompt()
        case "theme":
            await view.set_theme(argument)
        case _:
            await view.run_action(ACTIONS[name])


def _put_saved_prompt(controller: ChatController, name: str) -> None:
    prompts = controller.session.settings.prompts
    if name not in prompts:
        names = (
            ", ".join(map(one_line, prompts))
            or 'none yet; to add one: [prompts] NAME = "text" in settings.toml'
        )
        raise SettingsError(f"No such prompt: {one_line(name, 40)!r}.", hint=f"Prompts: {names}.")
    controller.prompt.replace(prompts[name])
    controller.view.prompt.select_variable((0, 0))


def _stored(controller: ChatController) -> str:
    if not controller.shown.id:
        raise EdgechatError("This conversation is empty.", hint="Ask something first.")
    return controller.shown.id


async def next_thinking(controller: ChatController) -> None:
    """Cycle thinking through the model's default, on, and off. Raises EdgechatError."""
    order = {None: True, True: False, False: None}
    shown = controller.shown
    await parameters.set_thinking(controller.session, shown, order[shown.settings.think])


def arguments(controller: ChatController, name: str) -> Sequence[tuple[str, str]]:
    """Return a command's possible arguments, each with a short description."""
    match name:
        case "think":
            return [("on", "always"), ("off", "never"), ("auto", "the model's default")]
        case "tools":
            return [("off", "none")]
        case "docs":
            return [*((one, "documents") for one in document_names()), ("off", "none")]
        case "lora":
            return [("off", "none"), ("auto", "those in the settings")]
        case "preset":
            presets = controller.session.settings.presets
            return [
                (preset_name, one_line(preset.system or "", 60)) for preset_name, preset in presets.items()
            ]
        case "prompt":
            prompts = controller.session.settings.prompts
            return [(prompt_name, one_line(text, 60)) for prompt_name, text in prompts.items()]
        case "set":
            return [(f"{parameter} ", "") for parameter in SamplingDefaults.__struct_fields__]
        case "model" | "pull":
            return controller.models.names(remote=name == "pull")
    return ()


# Actions on a turn.


def act(controller: ChatController, turn_id: str, what: str) -> None:
    """Run an action on a turn. Errors are shown.

    what: copy, copy_code, edit, regenerate, regenerate_with, continue, quote, bring_back, passages, unfold,
    other(-1), other(1) or compare.
    """
    turn, view = controller.shown.turn(turn_id), controller.view
    if turn is None:
        return
    try:
        match what:
            case "copy":
                _copy(controller, turn.content, "Copied")
            case "copy_code":
                _copy_code(controller, turn)
            case "quote":
                view.prompt.quote(printable(turn.content))
                view.prompt.focus()
            case "bring_back":
                _bring_back(controller, turn)
            case "passages":
                _show_passages(controller, turn)
            case "unfold" if turn.role == "assistant" and not (turn.thinking or turn.rounds):
                if passages := _cited(controller, turn):
                    view.show_passages(passages)
            case "unfold":
                view.toggle_thought(turn.id)
            case "other(-1)" | "other(1)":
                view.run_in_background(_switch(controller, turn, -1 if "-" in what else 1))
            case "edit" if turn.role == "user":
                controller.shown.check_not_answering()
                controller.prompt.replace(turn.content, turn)
            case "regenerate":
                controller.retry(turn.id)
                view.prompt.focus()
            case "regenerate_with":
                view.run_in_background(_regenerate_with(controller, turn))
            case "compare":
                view.run_in_background(_compare(controller, turn))
            case "continue":
                controller.continue_reply()
                view.prompt.focus()
    except EdgechatError as error:
        view.show_error(error)


def can(controller: ChatController, turn_id: str, what: str) -> bool:
    """Return whether an action is available for a turn."""
    shown = controller.shown
    turn = shown.turn(turn_id)
    if turn is None:
        return False
    match what:
        case "edit":
            return turn.role == "user"
        case "bring_back":
            return shown.conversation is not None and turn in shown.conversation.left_out()
        case "passages":
            return any(file.source is not None for turn in shown.turns for file in turn.attachments)
        case "copy_code":
            return "```" in turn.content or "~~~" in turn.content or "    " in turn.content
        case "continue":
            return shown.can_continue and turn is shown.turns[-1]
        case "compare":
            return shown.conversation is not None and shown.conversation.branches(turn.id)[1] > 1
        case "regenerate" | "regenerate_with":
            return turn.role != "system"
    return True


async def _switch(controller: ChatController, turn: Turn, by: int) -> None:
    other = await controller.shown.switch(turn.id, by)
    if other is not None:
        controller.view.point_at(other)


async def _regenerate_with(controller: ChatController, turn: Turn) -> None:
    """Let the user choose another model for this answer and all later ones."""
    controller.check_can_retry()
    models = await controller.models.find_names(remote=False)
    if not models:
        raise ChatNotFound("There is no other model on this machine.", hint="Ctrl+O downloads one.")
    chosen = await controller.view.choose_model("Answer again with", models)
    if chosen is not None:
        await controller.retry_with(chosen, turn.id)
        controller.view.prompt.focus()


async def _compare(controller: ChatController, turn: Turn) -> None:
    shown = controller.shown
    if shown.conversation is None:
        return
    at, _ = shown.conversation.branches(turn.id)
    chosen = await controller.view.compare(shown.conversation.versions(turn.id), at)
    if chosen is not None and chosen != at:
        await _switch(controller, turn, chosen - at)


def _show_passages(controller: ChatController, turn: Turn) -> None:
    """Show the passages sent with a question or cited in a reply. Raises ChatNotFound."""
    is_reply = turn.role == "assistant"
    passages = _cited(controller, turn) if is_reply else list(passages_in([turn]).values())
    if not passages:
        raise ChatNotFound("This turn contains no document passages.")
    controller.view.show_passages(passages)


def _cited(controller: ChatController, turn: Turn) -> list[Attachment]:
    turns = controller.shown.turns
    return cited(turn.content, passages_in(turns[: turns.index(turn)]).values())


def copy_reply(controller: ChatController) -> None:
    """Copy the last reply. Raises ChatNotFound if there is none."""
    replies = [turn for turn in controller.shown.turns if turn.role == "assistant" and turn.content]
    if not replies:
        raise ChatNotFound("There is no reply to copy yet.")
    _copy(controller, replies[-1].content, "Copied the reply")


def _copy(controller: ChatController, text: str, message: str) -> None:
    controller.view.copy(text)
    controller.view.show_message(message, seconds=1.5)


def _copy_code(controller: ChatController, turn: Turn) -> None:
    """Copy a code block from the turn. Calling this again copies the next one."""
    blocks = code_blocks(turn.content)
    if not blocks:
        raise ChatNotFound("There is no code in this turn.")
    before = controller.view.clipboard
    at = (blocks.index(before) + 1) % len(blocks) if before in blocks else 0
    which = f", {at + 1} of {len(blocks)}" if len(blocks) > 1 else ""
    _copy(controller, blocks[at], f"Copied the code{which}")


def code_blocks(text: str) -> list[str]:
    """Return the code blocks in Markdown text, without their fences."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(text)
    return [token.content for token in tokens if token.type in ("fence", "code_block")]


def _bring_back(controller: ChatController, turn: Turn) -> None:
    """Attach an earlier exchange, which is no longer sent to the model, to the next question."""
    turns = controller.shown.turns
    index = turns.index(turn)
    first = index - 1 if turn.role == "assistant" and index else index
    exchange = [turn for turn in turns[first : first + 2] if turn.role != "system"]
    speakers = {"user": "You", "assistant": "Answer"}
    text = "\n\n".join(f"{speakers[turn.role]}: {turn.content}" for turn in exchange)
    pane = controller.view.pane
    pane.attach(Attachment(f"earlier: {one_line(exchange[0].content, 30)}", text))
    for image in exchange[0].images:
        pane.attach(image)
    controller.view.prompt.focus()


# Actions on stored conversations.


async def change(controller: ChatController, action: str, chat: Chat, text: str) -> None:
    """Run an action from the list of conversations; see `ChatList.Requested`. Raises EdgechatError."""
    match action:
        case "retitle":
            await rename(controller, chat.id, text)
        case "pin":
            await pin(controller, chat.id, not chat.pinned)
        case "delete":
            await delete(controller, chat.id, ask=True)
        case "restore":
            await restore(controller, chat.id)
        case "purge":
            await purge(controller, chat.id)
        case "export":
            await export(controller, chat.id)


async def rename(controller: ChatController, chat_id: str, title: str) -> None:
    """Rename a conversation. Raises EdgechatError."""
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
    """Move a conversation to the trash, after confirmation if `ask`. Raises EdgechatError."""
    store = await controller.session.store()
    if chat_id in controller.answering:
        raise ChatBusy("An answer is being generated there.", hint="Stop it first: Escape.")
    title = one_line((await store.find(chat_id)).title, 50)
    lasts = f"It stays in the trash for {TRASH_DAYS} days." if store.lasting else ""
    if ask and not await _confirm_deletion(controller, f"Delete “{title}”?\n\n{lasts}"):
        return
    await store.trash(chat_id)
    controller.session.forget(chat_id)
    controller.deleted.append(chat_id)
    if controller.shown.id == chat_id:
        controller.show_new()
    controller.view.show_message(f"Deleted “{title}”. Ctrl+Z undoes this. {lasts}", seconds=8)
    controller.view.refresh_chat()


async def undo_delete(controller: ChatController, *, focus: bool = True) -> None:
    """Restore the most recently deleted conversation and show it. Raises EdgechatError."""
    if controller.deleted:
        await restore(controller, controller.deleted[-1], focus=focus)


async def restore(controller: ChatController, chat_id: str, *, focus: bool = True) -> None:
    """Restore a conversation from the trash and show it. Raises EdgechatError.

    focus: whether to focus the prompt.
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
    """Permanently delete a conversation in the trash, after confirmation. Raises EdgechatError."""
    store = await controller.session.store()
    title = one_line((await store.find(chat_id, trashed=True)).title, 50)
    if await _confirm_deletion(controller, f"Delete “{title}” permanently? It cannot be restored."):
        await store.delete(chat_id)
        _forget_deleted(controller, chat_id)


async def _confirm_deletion(controller: ChatController, question: str) -> bool:
    return await controller.view.confirm(question.strip(), yes="Delete it", no="Keep it")


def _forget_deleted(controller: ChatController, chat_id: str) -> None:
    controller.deleted = [deleted for deleted in controller.deleted if deleted != chat_id]
    controller.view.refresh_chat()


async def export(controller: ChatController, chat_id: str, name: str = "") -> None:
    """Export a conversation as JSON if `name` ends in .json, else as Markdown. Raises EdgechatError."""
    conversation = await Conversation.load(await controller.session.store(), chat_id)
    path = await asyncio.to_thread(files.export_to_file, conversation, name)
    controller.view.show_message(f"Written to {one_line(str(path), 300)}", seconds=8)


async def import_file(controller: ChatController, name: str) -> None:
    """Import a conversation from a file and show it. Raises EdgechatError."""
    new = await asyncio.to_thread(lambda: parse_chat(files.read(name)))
    await add_chat(await controller.session.store(), new)
    await controller.open(new.chat.id)
