"""The slash commands of the front ends, `/name argument`, and how they are parsed."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgechat.base.errors import CommandError
from edgechat.base.text import one_line

if TYPE_CHECKING:
    from edgechat.chat.records import Front

_COMMAND = re.compile(r"/([A-Za-z][A-Za-z-]*)(?:\s+(.*))?", re.DOTALL)
"""Matches neither a path such as /usr/bin, which has a second slash, nor text that starts with a space."""


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command."""

    name: str
    description: str
    argument: str = ""
    """The argument as shown to users; in brackets if it is optional."""
    fronts: tuple[Front, ...] = ("app", "run")
    """The front ends that support it."""

    @property
    def usage(self) -> str:
        """The command as the user types it."""
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def needs_argument(self) -> bool:
        """Whether the argument is required."""
        return self.argument != "" and not self.argument.startswith("[")


_APP: tuple[Front, ...] = ("app",)
_RUN: tuple[Front, ...] = ("run",)

COMMANDS = (
    Command("new", "Start a new conversation"),
    Command("chats", "List the stored conversations"),
    Command("open", "Continue a stored conversation", "ID", _RUN),
    Command("search", "Search all conversations", "[WORDS]"),
    Command("find", "Find words in this conversation", "WORDS", _APP),
    Command("rename", "Rename this conversation", "TITLE"),
    Command("pin", "Pin this conversation to the top of the list, or unpin it"),
    Command("export", "Write this conversation to a Markdown or JSON file", "[FILE]"),
    Command("import", "Read a conversation from a JSON file", "FILE"),
    Command("delete", "Move this conversation to the trash"),
    Command("trash", "Show deleted conversations, to restore them", "", _APP),
    Command("model", "Switch to another model; without NAME, say which one answers", "[NAME]"),
    Command("models", "Show local and downloadable models, and which of them fit", "", _APP),
    Command(
        "guide", "Ask the guide about edgechat, while another model is being downloaded", "QUESTION", _APP
    ),
    Command("pull", "Download a model in the background", "NAME", _APP),
    Command("think", "Switch the model's thinking on or off, or leave it to the model", "on|off|auto"),
    Command("tools", "Choose the tools that the model may call; off: none", "[NAMES]"),
    Command("docs", "Switch documents on or off in this conversation, or add a folder", "[NAME|FOLDER|off]"),
    Command(
        "lora", "Choose LoRA adapters, with a scale if it is not 1; off: none", "[NAME[:SCALE],...|off|auto]"
    ),
    Command("system", "Set the system prompt of this conversation; without TEXT, remove it", "[TEXT]"),
    Command("set", "Set a sampling parameter of this conversation: /set temperature 0.3", "NAME VALUE"),
    Command("preset", "Apply a saved system prompt and parameters", "NAME"),
    Command("save-preset", "Save this conversation's system prompt and parameters as a preset", "NAME"),
    Command("parameters", "Edit the system prompt and parameters of this conversation", "", _APP),
    Command(
        "prompt", "Put a saved prompt into the prompt box; Tab goes through its {variables}", "NAME", _APP
    ),
    Command("editor", "Edit the prompt in your own editor: $VISUAL or $EDITOR", "", _APP),
    Command("attach", "Attach a text file, or the list of a folder, to the next question", "FILE"),
    Command("image", "Attach an image to the next question", "FILE"),
    Command("retry", "Regenerate the last reply"),
    Command("continue", "Continue the last reply where it was stopped or cut off"),
    Command("copy", "Copy the last reply", "", _APP),
    Command("thoughts", "Show or hide the model's thinking", "", _APP),
    Command("engine", "Show or hide the engine room", "", _APP),
    Command("settings", "Change the settings", "", _APP),
    Command("theme", "Change the colours", "NAME", _APP),
    Command("help", "List the commands"),
    Command("quit", "Quit"),
)


def commands_of(front: Front) -> tuple[Command, ...]:
    """Return the commands that a front end supports."""
    return tuple(command for command in COMMANDS if front in command.fronts)


def parse_command(text: str) -> tuple[str, str] | None:
    """Return a command's lowercase name and its argument, or None if `text` is not a command."""
    match = _COMMAND.fullmatch(text.rstrip())
    return (match[1].lower(), (match[2] or "").strip()) if match else None


def question_text(text: str) -> str:
    """Return text that is not a command as a question: a leading `//word` becomes `/word`."""
    return text[1:] if text.startswith("//") and parse_command(text[1:]) is not None else text


def check(name: str, argument: str, front: Front) -> None:
    """Raise CommandError if a front end lacks the command, or if its argument is missing or not allowed."""
    commands = {command.name: command for command in commands_of(front)}
    as_question = f"//{one_line(f'{name} {argument}'.rstrip(), 60)} sends it as a question."
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        instead = f"Did you mean /{close[0]}? " if close else ""
        raise CommandError(
            f"No such command: /{one_line(name, 40)}.",
            hint=f"{instead}/help lists the commands; {as_question}",
        )
    command = commands[name]
    if command.needs_argument and not argument:
        raise CommandError(f"/{name} needs an argument: {command.usage}", hint=f"{command.description}.")
    if argument and not command.argument:
        raise CommandError(f"/{name} takes no argument.", hint=as_question)
