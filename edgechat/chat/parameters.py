"""Commands that change how replies are generated: /think, /system, /set, /tools, /docs and others."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from edgechat.base.errors import DocumentError, SettingsError, SwitchUnknown
from edgechat.base.text import one_line
from edgechat.chat.attachments import path_exists
from edgechat.chat.records import ChatSettings, apply_preset
from edgechat.chat.reply.chat_tools import choice
from edgechat.chat.session import ChatSession
from edgechat.planner.plan import LoadPlan
from edgechat.settings import SamplingDefaults, checked
from edgechat.tools.config import ARGUMENTS

if TYPE_CHECKING:
    from edgechat.documents.indexing import Progress

THINK = {"on": True, "off": False, "auto": None}
ADJUSTING_COMMANDS = ("think", "system", "set", "tools", "docs", "lora", "preset", "save-preset")


class Adjustable(Protocol):
    """A conversation whose system prompt and settings can be changed."""

    @property
    def system(self) -> str | None:
        """The system prompt."""

    @property
    def settings(self) -> ChatSettings:
        """The generation settings."""

    async def set_system(self, text: str | None) -> None:
        """Set the system prompt; None removes it. Raises EdgechatError."""

    async def set_settings(self, settings: ChatSettings) -> None:
        """Change the generation settings for future replies. Raises EdgechatError."""


async def adjust(session: ChatSession, conversation: Adjustable, command: str, argument: str) -> str:
    """Run one of ADJUSTING_COMMANDS; return a sentence describing the change. Raises EdgechatError."""
    match command:
        case "think":
            if argument.lower() not in THINK:
                raise SettingsError(f"Use on, off or auto, not {one_line(argument, 40)!r}.")
            await set_thinking(session, conversation, THINK[argument.lower()])
            return f"Thinking is {argument.lower()} in this conversation."
        case "system":
            await conversation.set_system(argument or None)
            return "The system prompt is set." if argument else "The system prompt is removed."
        case "set":
            return await _set_parameter(session, conversation, argument)
        case "tools":
            return await _choose_tools(session, conversation, argument)
        case "docs":
            return await _switch_documents(session, conversation, argument)
        case "lora":
            return await _choose_adapters(session, conversation, argument)
        case "preset":
            await _apply_preset(session, conversation, argument)
            return f"The preset “{one_line(argument, 40)}” is applied to this conversation."
        case _:
            await session.save_preset(argument, conversation.system, conversation.settings)
            return f"Saved. To apply it to any conversation: /preset {one_line(argument, 40)}"


async def set_thinking(session: ChatSession, conversation: Adjustable, think: bool | None) -> None:
    """Switch thinking on or off in a conversation; None leaves it to the model.

    Raises StoreError, and SwitchUnknown if the loaded model has no such switch.
    """
    model = session.loaded.model if session.loaded is not None else None
    if think is not None and model is not None and not model.can_switch_thinking:
        raise SwitchUnknown(f"With {one_line(model.name, 60)}, thinking cannot be switched on or off.")
    _drop_options(session, (), think=True)
    await conversation.set_settings(msgspec.structs.replace(conversation.settings, think=think))


async def set_tools(session: ChatSession, conversation: Adjustable, tools: tuple[str, ...]) -> None:
    """Choose the tools for a conversation. Raises StoreError."""
    session.options = msgspec.structs.replace(session.options, tools=None)
    await conversation.set_settings(msgspec.structs.replace(conversation.settings, tools=tools))


async def _choose_tools(session: ChatSession, conversation: Adjustable, argument: str) -> str:
    """Choose tools by name, or `off` for none; without an argument, list them."""
    known = await session.tools.known()
    if argument:
        await set_tools(session, conversation, () if argument == "off" else choice(argument, known))
    chosen = session.chosen_tools(conversation.settings)
    now = f"Tools in this conversation: {', '.join(map(one_line, chosen)) or 'none'}."
    if argument:
        return now
    names = ", ".join(
        f"{one.name}:{ARGUMENTS[one.name]}" if one.name in ARGUMENTS else one_line(one.name, 40)
        for one in known
    )
    return f"{now} Available: {names}. Use off for none."


async def set_documents(session: ChatSession, conversation: Adjustable, names: tuple[str, ...]) -> None:
    """Choose the collections to search in a conversation. Raises StoreError."""
    session.options = msgspec.structs.replace(session.options, documents=None)
    await conversation.set_settings(msgspec.structs.replace(conversation.settings, documents=names))


async def _switch_documents(session: ChatSession, conversation: Adjustable, argument: str) -> str:
    """Switch a collection on or off, or switch all of them off; without an argument, list them."""
    from edgechat.documents import registry

    known = await asyncio.to_thread(registry.names)
    chosen = session.chosen_documents(conversation.settings)
    if argument == "off":
        chosen = ()
    elif argument in chosen:
        chosen = tuple(name for name in chosen if name != argument)
    elif argument in known:
        chosen = (*chosen, argument)
    elif argument:
        raise DocumentError(
            f"There is no document collection named {one_line(argument, 80)!r}, and no such folder.",
            hint=f"Available: {', '.join(known)}." if known else "To add some: /docs FOLDER",
        )
    if argument:
        await set_documents(session, conversation, chosen)
    now = f"Documents in this conversation: {', '.join(map(one_line, chosen)) or 'none'}."
    if argument:
        return now
    there = f"Available: {', '.join(known)}. Use off for none. " if known else ""
    return f"{now} {there}/docs FOLDER adds a folder."


def is_folder_of_documents(argument: str) -> bool:
    """Return whether an argument to /docs is a path, not the name of a collection. Blocks."""
    from edgechat.documents import registry

    return bool(argument) and argument not in registry.names() and path_exists(argument, or_folder=True)


async def add_documents(
    session: ChatSession, conversation: Adjustable, path: str, on_progress: Callable[[Progress], None]
) -> str:
    """Read a folder or file into a collection and switch it on; return a sentence describing it.

    If this is cancelled, everything read so far is kept. on_progress: called on another thread. Raises
    DocumentError.
    """
    from edgechat.documents import registry

    root = await asyncio.to_thread(registry.root_of, path)
    found = await asyncio.to_thread(registry.survey, root)
    if found.is_huge and await asyncio.to_thread(registry.collection_at, root) is None:
        raise DocumentError(
            f"{one_line(path, 120)} is very large: {found.about}.",
            hint=f"Name a smaller folder, or read it all: edgechat docs add --yes {shlex.quote(path)}",
        )
    name = await asyncio.to_thread(registry.collection_of, root)
    (update,) = await session.documents.refresh([name], on_progress, fresh_seconds=0.0)
    chosen = session.chosen_documents(conversation.settings)
    if name not in chosen:
        await set_documents(session, conversation, (*chosen, name))
    counts = next(
        one.about for one in await asyncio.to_thread(registry.known_collections) if one.name == name
    )
    left_out = f", {len(update.left_out):,} left out or incomplete" if update.left_out else ""
    left_out += f"; {update.others.about}" if update.others else ""
    more = "" if update.is_complete else " There are too many files; some were not checked."
    return f"{name} is switched on in this conversation: {counts}{left_out}.{more}"


async def _choose_adapters(session: ChatSession, conversation: Adjustable, argument: str) -> str:
    """Choose LoRA adapters, `off` for none or `auto` for the defaults; return a sentence listing them."""
    from edgechat.models.adapters.local import local_adapters

    if argument:
        texts = tuple(filter(None, (text.strip() for text in argument.split(","))))
        chosen = {"off": (), "auto": None}.get(argument.lower(), texts)
        if chosen:
            await asyncio.to_thread(_check_adapters, chosen, session.plan)
        session.options = msgspec.structs.replace(session.options, adapters=None)
        await conversation.set_settings(msgspec.structs.replace(conversation.settings, adapters=chosen))
    applied = session.chosen_adapters(conversation.settings)
    now = f"LoRA adapters in this conversation: {', '.join(map(one_line, applied)) or 'none'}."
    if argument:
        return now
    known = [one_line(one.name, 60) for one in await asyncio.to_thread(local_adapters)]
    there = f" Available: {', '.join(known)}." if known else ""
    return f"{now}{there} /lora off applies none, /lora auto the ones in the settings."


def _check_adapters(texts: tuple[str, ...], plan: LoadPlan | None) -> None:
    """Raise NotAnAdapter unless the adapters exist and, if the model is known, fit it."""
    from edgechat.models.adapters.local import adapter_uses
    from edgechat.models.adapters.peft import open_adapter
    from edgechat.models.formats.mlx.contents import read_model

    uses = adapter_uses(texts)
    if plan is not None:
        header = read_model(Path(plan.model_path))
        for one in uses:
            open_adapter(Path(one.path), header)


async def _set_parameter(session: ChatSession, conversation: Adjustable, argument: str) -> str:
    """Set a sampling parameter, as in `temperature 0.3`; reset it if the value is missing or `default`."""
    name, _, value = argument.partition(" ")
    value = value.strip()
    fields = SamplingDefaults.__struct_fields__
    if name not in fields:
        raise SettingsError(
            f"No such parameter: {one_line(name, 40)!r}.", hint=f"Parameters: {', '.join(fields)}."
        )
    values = conversation.settings.sampling.given()
    if value in ("", "default"):
        values.pop(name, None)
    else:
        values[name] = number(value)
    sampling = checked(values, SamplingDefaults, "/set")
    _drop_options(session, {name})
    await conversation.set_settings(msgspec.structs.replace(conversation.settings, sampling=sampling))
    return f"{name} is {one_line(value, 40) or 'the default'} in this conversation."


async def _apply_preset(session: ChatSession, conversation: Adjustable, name: str) -> None:
    presets = session.settings.presets
    if name not in presets:
        names = ", ".join(presets) or "none yet; to save one: /save-preset NAME"
        raise SettingsError(f"No such preset: {one_line(name, 40)!r}.", hint=f"Presets: {names}.")
    preset = presets[name]
    system, settings = apply_preset(preset, conversation.system, conversation.settings)
    if system != conversation.system:
        await conversation.set_system(system)
    _drop_options(session, set(preset.sampling.given()), think=preset.think is not None)
    if preset.adapters is not None:
        session.options = msgspec.structs.replace(session.options, adapters=None)
    await conversation.set_settings(settings)


def _drop_options(session: ChatSession, sampling: Collection[str], *, think: bool = False) -> None:
    """Remove command-line options that would override what the user chose later."""
    options = session.options
    values = {name: value for name, value in options.sampling.given().items() if name not in sampling}
    session.options = msgspec.structs.replace(
        options, sampling=SamplingDefaults(**values), think=None if think else options.think
    )


def number(text: str) -> float | int:
    """Parse a number that the user typed. Raises SettingsError."""
    text = text.strip().replace(",", ".")
    for parse in (int, float):
        with contextlib.suppress(ValueError):
            return parse(text)
    raise SettingsError(f"{one_line(text, 40)!r} is not a number.")
