"""What the commands of the prompt box do that have an argument, or no key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from edgechat.chat.commands import check
from edgechat.chat.records import ChatSettings
from edgechat.chat.storage.presets import applied
from edgechat.errors import EdgechatError, SettingsError, SwitchUnknown
from edgechat.settings import SamplingDefaults, checked
from edgechat.text import one_line

if TYPE_CHECKING:
    from edgechat.tui.chat.screen import ChatScreen

_ACTIONS = {
    "new": "screen.new_chat",
    "chats": "screen.conversations",
    "trash": "screen.trash",
    "models": "screen.models",
    "parameters": "screen.parameters",
    "retry": "screen.retry",
    "copy": "screen.copy_reply",
    "thoughts": "screen.thoughts",
    "engine": "screen.engine_room",
    "settings": "app.settings",
    "help": "app.help",
    "quit": "app.quit",
}
THINK = {"on": True, "off": False, "auto": None}


async def obey(screen: ChatScreen, name: str, argument: str) -> None:
    """Do what a command says; what is wrong with it is told, and it goes back to an empty prompt."""
    try:
        check(name, argument, "app")
        if name in _ACTIONS:
            await screen.run_action(_ACTIONS[name])
        else:
            await _do(screen, name, argument)
    except EdgechatError as error:
        screen.tell_error(error)
        _put_back(screen, name, argument)


def _put_back(screen: ChatScreen, name: str, argument: str) -> None:
    """Give a command back to be put right, unless something else is being written by now."""
    if not screen.prompt.text:
        screen.prompt.fill(f"/{name} {argument}")


async def _do(screen: ChatScreen, name: str, argument: str) -> None:
    talk, desk = screen.talk, screen.desk
    match name:
        case "search":
            await screen.panels.search(argument)
        case "rename":
            await desk.rename(_stored(screen), argument)
            screen.notify(f"It is called “{one_line(argument, 60)}” now.", markup=False)
        case "pin":
            chat_id = _stored(screen)
            pinned = talk.conversation is not None and not talk.conversation.chat.pinned
            await desk.pin(chat_id, pinned)
            screen.notify("Pinned to the top of the list." if pinned else "No longer pinned.")
        case "export":
            await desk.export(_stored(screen), argument)
        case "import":
            await desk.import_file(argument)
        case "delete":
            await desk.delete(_stored(screen))
        case "model":
            await _take_model(screen, argument)
        case "pull":
            screen.models.pull(argument)
        case "think":
            await _think(screen, argument)
        case "system":
            await talk.set_system(argument or None)
            screen.notify("The system prompt is set." if argument else "There is no system prompt any more.")
        case "set":
            await _set(screen, argument)
        case "preset":
            await _take_preset(screen, argument)
        case "save-preset":
            await screen.session.save_preset(argument, talk.system, talk.settings)
            screen.notify(
                f"Saved. /preset {one_line(argument, 40)} takes it in any conversation.", markup=False
            )
        case "attach":
            screen.pane.attach_file(argument)
        case "theme":
            screen.app.take_theme(argument)  # type: ignore[attr-defined]
    screen.panels.refresh()


async def _take_model(screen: ChatScreen, name: str) -> None:
    if name:
        await screen.models.take(name)
    elif screen.session.plan is not None:
        screen.notify(f"{one_line(screen.session.plan.model_name, 60)} answers.", markup=False)


def _stored(screen: ChatScreen) -> str:
    if not screen.talk.id:
        raise EdgechatError("This conversation is empty.", hint="Say something first.")
    return screen.talk.id


async def _think(screen: ChatScreen, argument: str) -> None:
    if argument.lower() not in THINK:
        raise SettingsError(f"Thinking is on, off or auto, not {one_line(argument, 40)!r}.")
    await set_thinking(screen, THINK[argument.lower()])


async def set_thinking(screen: ChatScreen, think: bool | None) -> None:
    """Switch the thinking of the conversation that is shown. Raises EdgechatError."""
    engine = screen.session.loaded
    info = engine.model if engine is not None else None
    if think is not None and info is not None and not info.can_switch_thinking:
        raise SwitchUnknown(f"The thinking of {one_line(info.name, 60)} cannot be switched.")
    await screen.talk.change(msgspec.structs.replace(screen.talk.settings, think=think))
    screen.show_thinking()


async def next_thinking(screen: ChatScreen) -> None:
    """Switch the thinking on, then off, then leave it to the model. Raises EdgechatError."""
    order = {None: True, True: False, False: None}
    await set_thinking(screen, order[screen.talk.settings.think])


async def edit_parameters(screen: ChatScreen) -> None:
    """Let the system prompt and the parameters be changed. Raises EdgechatError."""
    from edgechat.tui.chat.parameters import Parameters, ParametersScreen

    talk, session = screen.talk, screen.session
    info = session.loaded.model if session.loaded is not None else None
    defaults = session.generation_options(ChatSettings(think=talk.settings.think)).sampling
    can_think = info is not None and info.can_switch_thinking

    async def save(found: Parameters) -> None:
        if found.system != talk.system:
            await talk.set_system(found.system)
        await talk.change(found.settings)
        screen.show_thinking()
        if found.save_as:
            await session.save_preset(found.save_as, found.system, found.settings)

    presets = session.settings.presets
    await screen.app.push_screen_wait(
        ParametersScreen(talk.system, talk.settings, presets, defaults, can_think=can_think, save=save)
    )


async def _set(screen: ChatScreen, argument: str) -> None:
    name, _, value = argument.partition(" ")
    settings = screen.talk.settings
    fields = SamplingDefaults.__struct_fields__
    if name not in fields:
        raise SettingsError(
            f"There is no parameter {one_line(name, 40)!r}.", hint=f"There are {', '.join(fields)}."
        )
    given = settings.sampling.given()
    if value.strip() in ("", "default"):
        given.pop(name, None)
    else:
        given[name] = number(value)
    sampling = checked(given, SamplingDefaults, "/set")
    await screen.talk.change(msgspec.structs.replace(settings, sampling=sampling))
    screen.notify(f"{name} is {value.strip() or 'the default'} in this conversation.", markup=False)


def number(text: str) -> float | int:
    """Return what a person has typed. Raises SettingsError."""
    text = text.strip().replace(",", ".")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{one_line(text, 40)!r} is no number.") from None


async def _take_preset(screen: ChatScreen, name: str) -> None:
    presets = screen.session.settings.presets
    if name not in presets:
        known = ", ".join(presets) or "there are none yet: /save-preset NAME saves one"
        raise SettingsError(f"There is no preset {one_line(name, 40)!r}.", hint=f"Presets: {known}.")
    talk = screen.talk
    system, chat = applied(presets[name], talk.system, talk.settings)
    if system != talk.system:
        await talk.set_system(system)
    await talk.change(chat)
    screen.show_thinking()
    screen.notify(f"This conversation goes by “{one_line(name, 40)}” now.", markup=False)


def arguments(screen: ChatScreen, name: str) -> Sequence[tuple[str, str]]:
    """Return what may come after a command, each with a word about it."""
    match name:
        case "think":
            return [("on", "always"), ("off", "never"), ("auto", "as the model does")]
        case "preset":
            presets = screen.session.settings.presets
            return [(one, one_line(preset.system or "", 60)) for one, preset in presets.items()]
        case "set":
            return [(f"{one} ", "") for one in SamplingDefaults.__struct_fields__]
        case "model" | "pull":
            return screen.models.names(remote=name == "pull")
        case "theme":
            from edgechat.tui.theme import THEMES

            return [(one, "") for one in THEMES]
    return ()
