"""What can be done in words: `/name argument` in the prompt box, and the same in the command palette."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One thing to do. `action` is Textual's; without one the chat screen does it with the argument."""

    name: str
    description: str
    argument: str = ""
    """What comes after the name, in words; in brackets if it may be left out."""
    action: str = ""

    @property
    def usage(self) -> str:
        """What is typed."""
        return f"/{self.name} {self.argument}".rstrip()


COMMANDS = (
    Command("new", "Begin a new conversation", action="screen.new_chat"),
    Command("chats", "Show the conversations, or hide them", action="screen.conversations"),
    Command("search", "Search everything that was ever said", "[WORDS]"),
    Command("rename", "Give this conversation another title", "TITLE"),
    Command("pin", "Keep this conversation at the top of the list, or no longer"),
    Command("export", "Write this conversation to a Markdown or JSON file", "[FILE]"),
    Command("import", "Read conversations from a JSON file", "FILE"),
    Command("delete", "Delete this conversation; Ctrl+Z undoes it"),
    Command("trash", "Show what was deleted, to bring it back", action="screen.trash"),
    Command("model", "Let another model answer", "NAME"),
    Command("models", "Show the models: what is here, what fits, what can be pulled", action="screen.models"),
    Command("pull", "Download a model in the background", "NAME"),
    Command("think", "Switch the model's thinking on or off, or leave that to the model", "on|off|auto"),
    Command("system", "Set the system prompt of this conversation; without a text, take it away", "[TEXT]"),
    Command("set", "Set how tokens are chosen in this conversation: /set temperature 0.3", "NAME VALUE"),
    Command("preset", "Take a system prompt and parameters that were saved under a name", "NAME"),
    Command("save-preset", "Save this conversation's system prompt and parameters under a name", "NAME"),
    Command(
        "parameters",
        "Change the system prompt and the parameters of this conversation",
        "",
        "screen.parameters",
    ),
    Command("attach", "Send a file along; @path in a question does the same", "FILE"),
    Command("retry", "Have another try at the last reply", action="screen.retry"),
    Command("copy", "Copy the last reply", action="screen.copy_reply"),
    Command("thoughts", "Unfold or fold the thinking", action="screen.thoughts"),
    Command("engine", "Show what the engine does, or hide it", action="screen.engine_room"),
    Command("settings", "Change the settings", action="app.settings"),
    Command("theme", "Take other colours", "NAME"),
    Command("help", "Show the keys and the commands", action="app.help"),
    Command("quit", "Save everything and end", action="app.quit"),
)


def find(name: str) -> Command | None:
    """Return the command of that name."""
    return next((one for one in COMMANDS if one.name == name), None)


def unknown(name: str) -> str:
    """Return what to say where there is no such command."""
    close = difflib.get_close_matches(name, [one.name for one in COMMANDS], n=1)
    instead = f" Did you mean /{close[0]}?" if close else ""
    return f"There is no command /{name}.{instead} F1 lists them; to send it as it is, put a space before it."
