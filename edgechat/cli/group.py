"""Command groups that suggest a command when an unknown one is typed."""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from edgechat.base.errors import EdgechatError
from edgechat.base.text import flat, one_line

_UsageError: Any = typer.BadParameter.__base__
"""Click's, of which typer may have a copy of its own."""


class CommandGroup(TyperGroup):
    """Suggests `edgechat run guide` for `edgechat guide`."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """See click."""
        with _printable_usage_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """See click."""
        with _printable_usage_errors():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click."""
        if ctx.resilient_parsing:  # a shell asks how a line could go on
            return super().resolve_command(ctx, args)
        if args[0] == "chat":
            ctx.fail(
                "No such command 'chat'. `edgechat` alone opens the app; `edgechat chats` lists stored "
                "conversations."
            )
        if self.get_command(ctx, args[0]) is None and _is_model(args[0]):
            _suggest(ctx, args[0], ["edgechat", "run" if len(args) > 1 else "--model", *args])
        return super().resolve_command(ctx, args)


@contextlib.contextmanager
def _printable_usage_errors() -> Iterator[None]:
    """Make the arguments that a usage error quotes safe for a terminal."""
    try:
        yield
    except _UsageError as error:
        error.message = flat(error.message)
        raise


def _suggest(ctx: Any, word: str, command: list[str]) -> None:
    ctx.fail(f"No such command {word!r}. Did you mean: {one_line(shlex.join(command))}")


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


class ChatsGroup(TyperGroup):
    """Suggests `edgechat chats rm 1a2b` for `edgechat chats delete 1a2b`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click."""
        word = args[0]
        if ctx.resilient_parsing or self.get_command(ctx, word) is not None:
            return super().resolve_command(ctx, args)
        command = _probable_command(word)
        if command is not None:
            _suggest(ctx, word, ["edgechat", "chats", *filter(None, [command]), *args[1:]])
        if _is_id(word):
            _suggest(ctx, word, ["edgechat", "chats", "show", *args])
        return ctx.fail(f"No such command {word!r}. `edgechat chats --help` lists the commands.")


def _probable_command(word: str) -> str | None:
    """Return the command that an unknown or mistyped word probably means; "" for the list."""
    commands = {name: command for command, names in _SYNONYMS.items() for name in (*names, command) if name}
    if word.lower() in commands:
        return commands[word.lower()]
    similar = [] if _is_id(word) else difflib.get_close_matches(word.lower(), commands, n=1)
    return commands[similar[0]] if similar else None


def _is_id(word: str) -> bool:
    return len(word) >= 4 and all(letter in "0123456789abcdef" for letter in word.lower())


def _is_model(word: str) -> bool:
    if word.endswith(".gguf") or os.path.isfile(word):
        return True
    from edgechat.models.local.resolve import entry_of, local_models
    from edgechat.models.local.stores import is_model_folder

    try:
        return entry_of(word) is not None or is_model_folder(Path(word)) or bool(local_models(word))
    except EdgechatError:
        return False
