"""What edgechat has, read from the program itself: commands, options, keys, slash commands, settings, models.

The guide's answers about named things are generated from this, so that a renamed option changes the corpus.
All other answers, and every answer from a trained guide, are checked against it.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from places import ROOT

from edgechat.base.errors import EdgechatError
from edgechat.chat.commands import commands_of
from edgechat.cli.main import app
from edgechat.models.catalogue import CatalogueEntry, catalogue
from edgechat.settings import documented
from edgechat.settings.reading import settings_of
from edgechat.tui.app import parts
from edgechat.tui.overlays.help import bindings_of

NAME = "edgechat"
GUIDES = ("guide", "guide-draft")
EVERYWHERE = ("--debug", "--help")
# The order in which commands are searched for an option's text, and in which answers list them.
FIRST = ("run", "serve", "pull", "plan", "")


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command: its names, a placeholder for its value (or ''), and its --help text."""

    names: tuple[str, ...]
    value: str
    text: str

    @property
    def name(self) -> str:
        """The long name; the positive one, `--think`, if there is also `--no-think`."""
        return next(name for name in self.names if name.startswith("--"))


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the words after `edgechat`, its arguments as --help shows them, and what it does."""

    words: str
    arguments: tuple[str, ...]
    text: str
    options: tuple[Option, ...]
    many: bool = False
    """Whether its last argument can be repeated."""

    @property
    def line(self) -> str:
        """The command as typed, without arguments."""
        return f"{NAME} {self.words}".strip()

    @property
    def usage(self) -> str:
        """The command as typed, with arguments."""
        return " ".join((self.line, *self.arguments))

    def option(self, name: str) -> Option | None:
        """Return the option with that name, long or short; `--no-think` belongs to `--think`."""
        return next((one for one in self.options if name in one.names), None)


@dataclass(frozen=True, slots=True)
class Key:
    """What a key does in one part of the app. `action` is Textual's action name, without arguments."""

    key: str
    words: str
    part: str
    action: str
    text: str


_KINDS = {"str": "TEXT", "int": "N", "int range": "N", "float": "N", "float range": "N", "path": "FILE"}
_KEYS = {
    "pageup": "Page Up", "pagedown": "Page Down", "slash": "/", "up": "Up", "down": "Down", "left": "Left",
    "right": "Right", "escape": "Escape",
}  # fmt: skip
# Matches a key in any spelling that answers may use.
KEY = re.compile(
    r"\b(?:(?:Ctrl|Alt|Shift|Cmd|Meta|Super)\+(?:[A-Z][a-z]+|[A-Z](?![a-z]))|F(?:1[0-2]|[1-9])|"
    r"(?:Page|Arrow) (?:Up|Down)|Escape|Esc|Enter|Backspace|Insert|Space bar|Tab)\b"
)
OPTION = re.compile(r"(?:(?<=[\s(,/=])|^)(--?[a-zA-Z][\w-]*)")
CODE = re.compile(r"`([^`]*)`")
QUANT = re.compile(r":?(?:UD-)?(?:BF|F|I?Q|MXFP)\d+[A-Z0-9_]*|\dbit")
# Other programs that answers may tell users to run; the rest of such a command is not checked.
OUTSIDE = frozenset({
    "cat", "chmod", "curl", "docker", "export", "gh", "git", "hf", "make", "man", "ollama", "pip", "pipx",
    "python3", "sha256sum", "ssh", "tar", "uv", "wget", "xattr", "CMAKE_ARGS",
})  # fmt: skip
# Keys handled by the terminal itself, in `edgechat run MODEL` and while a command runs.
TERMINAL_KEYS = frozenset({"Ctrl+C", "Ctrl+D"})


def read_commands() -> dict[str, Command]:
    """Return all commands, keyed by their words; "" is `edgechat` alone."""
    return {one.words: one for one in _commands(app, app.make_context(NAME, [], resilient_parsing=True))}


def _commands(command: Any, context: Any) -> Iterator[Command]:
    arguments, options, many = [], [], False
    for param in command.get_params(context):
        if getattr(param, "hidden", False):
            continue
        said = param.get_help_record(context)
        if param.param_type_name == "argument":
            name = param.name.upper()
            arguments.append(name if param.required else f"[{name}]")
            many = param.nargs == -1
        elif said is not None:
            kind = re.sub(
                r"<(?:list\[)?(.*?)\]?>$", r"\1", re.sub(r"^(?:--?[\w-]+(?:, | / | ))+", "", said[0])
            )
            value = "" if param.is_flag or param.name == "help" else _KINDS.get(kind, kind)
            options.append(
                Option((*param.opts, *param.secondary_opts), value, param.help or "Say how to use it.")
            )
    words = context.command_path.removeprefix(NAME).strip()
    yield Command(words, tuple(arguments), command.help, tuple(options), many)
    for name, one in getattr(command, "commands", {}).items():
        yield from _commands(one, one.make_context(name, [], parent=context, resilient_parsing=True))


def read_keys() -> tuple[Key, ...]:
    """Return every key binding in every part of the app."""
    return tuple(
        Key(
            key.strip(),
            key_in_words(key.strip()),
            part.partition(":")[0],
            _action(binding.action),
            binding.description,
        )
        for part, classes in parts()
        for binding in bindings_of(*classes)
        for key in binding.key.split(",")
        if binding.description
    )


def _action(said: str) -> str:
    return re.sub(r"^(?:app|screen)\.", "", said)


def key_in_words(key: str) -> str:
    """Return 'ctrl+up' as the guide writes it: Ctrl+Up."""
    *held, last = key.split("+")
    if held and len(last) == 1:
        last = last.upper()
    elif len(last) > 1:
        last = _KEYS.get(last, last.replace("_", " ").capitalize())
    return "+".join([*(one.capitalize() for one in held), last])


class Product:
    """Everything in edgechat that has a name."""

    def __init__(self) -> None:
        self.commands = read_commands()
        self.keys = read_keys()
        self.slashes = {one.name: one for one in commands_of("app")}
        self.inside = frozenset(one.name for one in commands_of("run"))
        """The slash commands in `edgechat run`."""
        self.settings = {one.name: one for one in documented()}
        self.models: dict[str, CatalogueEntry] = {
            one.name: one for one in catalogue() if one.name not in GUIDES
        }
        sys.path.insert(0, str(ROOT / "packaging" / "binary"))
        try:
            import manpage
        finally:
            sys.path.pop(0)
        self.environment: dict[str, str] = manpage.ENVIRONMENT

    @cached_property
    def options(self) -> dict[str, tuple[Command, ...]]:
        """Maps the long name of every option to the commands that have it."""
        found: dict[str, list[Command]] = {}
        for words in sorted(self.commands, key=_place):
            for option in self.commands[words].options:
                found.setdefault(option.name, []).append(self.commands[words])
        return {name: tuple(commands) for name, commands in found.items()}

    @cached_property
    def key_names(self) -> frozenset[str]:
        """The names of all keys, as the guide writes them."""
        return frozenset(one.words for one in self.keys) | TERMINAL_KEYS

    @cached_property
    def words(self) -> frozenset[str]:
        """All words that are names or parts of names; options without their hyphens."""
        options = (name.lstrip("-") for name in self.option_names)
        commands = (word for words in self.commands for word in words.split())
        return frozenset({*options, *commands, *self.slashes, *self.inside, *self.settings, NAME, *GUIDES})

    @cached_property
    def option_names(self) -> frozenset[str]:
        """All names of options, long and short."""
        return frozenset(
            name for one in self.commands.values() for option in one.options for name in option.names
        )

    @cached_property
    def _texts(self) -> str:
        """The documentation and the server's source, which contain file names, addresses and values."""
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        files = [*pages, *sorted((ROOT / "edgechat" / "server").rglob("*.py"))]
        return "\n".join(file.read_text(encoding="utf-8") for file in files)

    @cached_property
    def _names(self) -> frozenset[str]:
        aliases = (name for one in catalogue() for name in (one.name, *one.aliases))
        return frozenset(
            {*aliases, *self.settings, *self.environment, *(f"/{name}" for name in self.slashes)}
        )

    def key(self, action: str) -> str:
        """Return the name of an action's key, or the first if there are several. Raises KeyError."""
        for one in self.keys:
            if action in (one.action, one.action.partition("(")[0]) or one.action == f"request('{action}')":
                return one.words
        raise KeyError(f"no key has the action {action!r}")

    def untrue(self, text: str) -> list[str]:
        """Return a complaint for each name in a text that does not exist in edgechat."""
        wrong = [fault for code in CODE.findall(text) for fault in self._untrue_code(code)]
        prose = CODE.sub(" ", text)
        wrong += [f"no command has {name}" for name in OPTION.findall(prose) if name not in self.option_names]
        wrong += [f"no key {name}" for name in KEY.findall(prose) if name not in self.key_names]
        wrong += [
            f"no command /{name}" for name in re.findall(r"(?<!\S)/([a-z][a-z-]*)(?![\w/])", prose)
            if name not in self.slashes and f"/{name}" not in self._texts
        ]  # fmt: skip
        return wrong

    def _untrue_code(self, code: str) -> list[str]:
        if not code.strip():
            return ["nothing between backticks"]
        if code.split()[0].partition("=")[0] in OUTSIDE:
            return []
        ours = [part.strip() for part in code.split("|") if re.match(rf"\s*{NAME}(\s|$)", part)]
        if ours:
            return [fault for part in ours for fault in self._untrue_line(part)]
        if code.startswith("--"):
            return [
                f"no command has {name}" for name in OPTION.findall(code) if name not in self.option_names
            ]
        if code.startswith("/") and re.sub("^//?", "", code.split()[0]) in {*self.slashes, *self.inside}:
            return []
        if "=" in code and code.split("=")[0] in self.environment:
            return []
        if re.match(r"[a-z_.]+ = |\[", code):
            return self._untrue_setting(code)
        known = (
            code in self._names | self.option_names
            or QUANT.fullmatch(code)
            or re.fullmatch(r"[A-Z]+(?:/[A-Z]+)?", code)
        )
        # File names, addresses, values and other programs' commands must occur in these texts as whole words.
        if known or re.search(rf"(?<![\w./-]){re.escape(code)}(?![\w/-])", self._texts):
            return []
        return [f"`{code}` is nothing of edgechat"]

    def _untrue_line(self, line: str) -> list[str]:
        """Return what is wrong with a command line: unknown commands, and options that the command lacks."""
        try:
            words = shlex.split(re.sub(r"[\[\]]", "", line))[1:]
        except ValueError as error:
            return [f"`{line}`: {error}"]
        if "--" in words:  # everything after it is another program's command line
            del words[words.index("--") :]
        command, taken = self.commands[""], 0
        wrong: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            below = f"{command.words} {word}".strip()
            if word.startswith("-") and word != "-":
                option = command.option(word.partition("=")[0])
                if option is None:
                    wrong.append(f"`{command.line}` has no option {word}")
                elif option.value and "=" not in word:
                    at += 1
            elif not taken and below in self.commands:
                command = self.commands[below]
            elif taken < len(command.arguments) or command.many:
                taken += 1
            elif word not in ("COMMAND", ">", "<", "FILE"):
                wrong.append(f"`{command.line}` takes no {word!r}")
        return wrong

    def _untrue_setting(self, code: str) -> list[str]:
        try:
            said = tomllib.loads(code)
            if said.keys() <= {one.partition(".")[2] for one in self.settings if "." in one}:
                said = {"sampling": said}
            if not said.keys() <= set(CatalogueEntry.__struct_fields__) - set(self.settings):
                settings_of(said, "settings.toml")
        except (tomllib.TOMLDecodeError, EdgechatError) as error:
            return [f"`{code}`: {error}"]
        return []


def _place(words: str) -> tuple[int, str]:
    return FIRST.index(words) if words in FIRST else len(FIRST), words


@cache
def product() -> Product:
    """Return the product, which is read on the first call and cached."""
    return Product()


def listed(names: Iterable[str]) -> str:
    """Return names as a list in prose: 'a, b and c'."""
    *some, end = names
    return f"{', '.join(some)} and {end}" if some else end
