"""Command groups that suggest a command when an unknown one is typed."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

_UsageError: Any = typer.BadParameter.__base__
"""Click's, of which typer may have a copy of its own."""


class CommandGroup(TyperGroup):
    """Suggests `edgechat run guide` for `edgechat guide`."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """See click."""
        try:
            return super().make_context(*args, **extra)
        except _UsageError as error:
            raise _shown(error) from None

    def invoke(self, ctx: Any) -> Any:
        """See click."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            raise _shown(error) from None

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
            from edgechat.base.text import one_line

            words = ["run", *args] if len(args) > 1 else ["--model", *args]
            meant = one_line(shlex.join(["edgechat", *words]))
            ctx.fail(f"No such command {args[0]!r}. Did you mean: {meant}")
        return super().resolve_command(ctx, args)


def _shown(error: Any) -> Any:
    """Return the error, with the arguments it quotes made safe for a terminal."""
    from edgechat.base.text import flat

    error.message = flat(error.message)
    return error


_MEANT = {
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
        if ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        word, rest = args[0], args[1:]
        if self.get_command(ctx, word) is None:
            meant = _meant(word)
            if meant is None and _is_id(word):
                meant, rest = "show", args
            if meant is not None:
                from edgechat.base.text import one_line

                words = ["edgechat", "chats", *([meant] if meant else []), *rest]
                ctx.fail(f"No such command {word!r}. Did you mean: {one_line(shlex.join(words))}")
            ctx.fail(f"No such command {word!r}. `edgechat chats --help` lists the commands.")
        return super().resolve_command(ctx, args)


def _meant(word: str) -> str | None:
    """Return the command that an unknown or mistyped word probably means; "" for the list."""
    import difflib

    known = {other: command for command, others in _MEANT.items() for other in (*others, command) if other}
    if word.lower() in known:
        return known[word.lower()]
    if _is_id(word):
        return None
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return known[near[0]] if near else None


def _is_id(word: str) -> bool:
    return len(word) >= 4 and all(letter in "0123456789abcdef" for letter in word.lower())


def _is_model(word: str) -> bool:
    if word.endswith(".gguf") or os.path.isfile(word):
        return True
    from edgechat.base.errors import EdgechatError
    from edgechat.models.local.resolve import entry_of, local_models
    from edgechat.models.local.stores import is_model_folder

    try:
        return entry_of(word) is not None or is_model_folder(Path(word)) or bool(local_models(word))
    except EdgechatError:
        return False
