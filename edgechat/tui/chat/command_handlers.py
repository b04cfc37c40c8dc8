"""The slash commands of the app; `edgechat.chat.commands` lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgechat.base.errors import EdgechatError, SettingsError
from edgechat.base.text import one_line
from edgechat.chat import parameters
from edgechat.chat.commands import check
from edgechat.documents.registry import names as document_names
from edgechat.settings import SamplingDefaults
from edgechat.tui.chat import stored_conversations
from edgechat.tui.chat.controller import ChatController
from edgechat.tui.chat.turn_actions import copy_reply


async def run_command(controller: ChatController, name: str, argument: str) -> None:
    """Run a command; an error is shown, and the command put back into an empty prompt to be corrected."""
    try:
        check(name, argument, "app")
        await _run(controller, name, argument)
    except EdgechatError as error:
        controller.view.show_error(error)
        if not controller.view.pane.text:
            controller.view.pane.fill(f"/{name} {argument}")


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
            await stored_conversations.rename(controller, _stored(controller), argument)
            view.show_message(f"Renamed to “{one_line(argument, 60)}”.")
        case "pin":
            chat_id = _stored(controller)
            pinned = shown.conversation is not None and not shown.conversation.chat.pinned
            await stored_conversations.pin(controller, chat_id, pinned)
            view.show_message("Pinned to the top of the list." if pinned else "Unpinned.")
        case "export":
            await stored_conversations.export(controller, _stored(controller), argument)
        case "import":
            await stored_conversations.import_file(controller, argument)
        case "delete":
            await stored_conversations.delete(controller, _stored(controller))
        case "model" if argument:
            await controller.switch_model(argument)
        case "guide":
            controller.ask_guide(argument)
        case "pull":
            controller.downloads.pulls.start(argument)
        case "prompt":
            _put_saved_prompt(controller, argument)
        case "docs" if argument:
            is_folder = await asyncio.to_thread(parameters.is_folder_of_documents, argument)
            if is_folder:
                controller.add_documents(argument)
            else:
                view.show_message(await parameters.adjust(controller.session, shown, name, argument))
        case "tools" | "docs" if not argument:
            await view.run_screen_command(name, argument)
            return
        case _ if name in parameters.ADJUSTING_COMMANDS:
            view.show_message(await parameters.adjust(controller.session, shown, name, argument))
        case _:
            await view.run_screen_command(name, argument)
            return
    view.refresh_chat()


def _put_saved_prompt(controller: ChatController, name: str) -> None:
    prompts = controller.session.settings.prompts
    if name not in prompts:
        names = (
            ", ".join(map(one_line, prompts))
            or 'none yet; to add one: [prompts] NAME = "text" in settings.toml'
        )
        raise SettingsError(f"No such prompt: {one_line(name, 40)!r}.", hint=f"Prompts: {names}.")
    controller.replace_prompt(prompts[name])
    controller.view.pane.select_variable()


def _stored(controller: ChatController) -> str:
    if not controller.shown.id:
        raise EdgechatError("This conversation is empty.", hint="Ask something first.")
    return controller.shown.id


async def next_thinking(controller: ChatController) -> None:
    """Switch the thinking on, then off, then leave it to the model. Raises EdgechatError."""
    order = {None: True, True: False, False: None}
    shown = controller.shown
    await parameters.set_thinking(controller.session, shown, order[shown.settings.think])


def arguments(controller: ChatController, name: str) -> Sequence[tuple[str, str]]:
    """Return the possible arguments of a command, each with a short description."""
    match name:
        case "think":
            return [("on", "always"), ("off", "never"), ("auto", "the model's default")]
        case "tools":
            return [("off", "none")]
        case "docs":
            return [*((one, "documents") for one in document_names()), ("off", "none")]
        case "lora":
            return [("off", "none"), ("auto", "those of the settings")]
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
            return controller.downloads.names(remote=name == "pull")
    return ()
