"""Command groups that suggest a command when an unknown one is typed."""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit, NoArgsIsHelpError

from edgechat.base.errors import EdgechatError
from edgechat.base.text import flat, one_line
from edgechat.cli.parameters import CliCommand

INTERRUPTED = 130


class CliGroup(click.Group):
    """Lists commands as they are declared; suggests similar ones when an unknown one is typed."""

    command_class = CliCommand

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{"subcommand_metavar": "COMMAND [ARGS]..."} | attributes)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """See click."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            near = difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.8)
            similar = ", ".join(map(repr, near or difflib.get_close_matches(args[0], self.commands)))
            ctx.fail(f"{error.message} Did you mean {similar}?" if similar else error.message)


class CommandGroup(CliGroup):
    """Suggests `edgechat run guide` for `edgechat guide`."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """See click."""
        with _own_endings():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """See click."""
        with _own_endings():
            return super().invoke(ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
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
def _own_endings() -> Iterator[None]:
    """Make the arguments that a usage error quotes safe for a terminal.

    click would say "Aborted!" of Ctrl+C, and call it a failure that nobody reads the output.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Exit(INTERRUPTED) from None
    except BrokenPipeError:
        raise Exit(0) from None
    except NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        error.message = flat(error.message)  # type: ignore[misc]
        raise


def _suggest(ctx: click.Context, word: str, command: list[str]) -> None:
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


class ChatsGroup(CliGroup):
    """Suggests `edgechat chats rm 1a2b` for `edgechat chats delete 1a2b`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
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
