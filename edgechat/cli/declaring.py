"""Options, arguments, commands and groups based on click's classes, with value types shown in --help."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import shlex
from collections import UserDict
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit, NoArgsIsHelpError

from edgechat.base.errors import EdgechatError
from edgechat.base.network.offline import OFFLINE, OFFLINE_OPTION
from edgechat.base.text import flat, one_line
from edgechat.cli.terminal_io import as_text

INTERRUPTED = 130

Completer = Callable[[str], list[tuple[str, str]]]
"""A function that takes what has been typed and returns the matching values, each with a description."""


class ArgumentText(click.ParamType[Any]):
    """Text in which non-UTF-8 bytes are replaced. Paths use plain strings instead."""

    name = "str"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        return as_text(value)


TEXT = ArgumentText()


class Number(click.ParamType[Any]):
    """A number within inclusive bounds."""

    def __init__(self, kind: type[int | float], min: float | None = None, max: float | None = None) -> None:
        self.kind, self.min, self.max = kind, min, max
        self.name = kind.__name__ if min is max is None else f"{kind.__name__} range"

    @property
    def bounds(self) -> str:
        """The bounds as shown by --help: 0<=x<=5."""
        if self.min is None:
            return "" if self.max is None else f"x<={self.max}"
        return f"x>={self.min}" if self.max is None else f"{self.min}<=x<={self.max}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`. NaN counts as out of bounds."""
        try:
            number = self.kind(value)
        except ValueError:
            kind, article = ("integer", "an") if self.kind is int else ("number", "a")
            reason = f"unable to parse string as {article} {kind}"
            self.fail(f"Input should be a valid {kind}, {reason}", param, ctx)
        if self.max is not None and not number <= self.max:
            self.fail(f"Input should be less than or equal to {self.max}", param, ctx)
        if self.min is not None and not number >= self.min:
            self.fail(f"Input should be greater than or equal to {self.min}", param, ctx)
        return number


def _shown_type(param: click.Parameter) -> str:
    """Return the type of a value as shown by --help: <int>, <a|b>, <list[str]>."""
    kind = param.type
    if isinstance(kind, click.Choice):
        return f"<{'|'.join(kind.choices)}>"
    name = "str" if kind is click.STRING else kind.name
    return f"<list[{name}]>" if param.multiple or param.nargs == -1 else f"<{name}>"


def _offers(complete: Completer | None) -> Any:
    if complete is None:
        return None

    def offer(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(value, help=text) for value, text in complete(incomplete)]

    return offer


class CliOption(click.Option):
    """An option whose values are completed in the shell by calling `complete`."""

    def __init__(self, names: Any, *, complete: Completer | None = None, **attributes: Any) -> None:
        super().__init__(names, shell_complete=_offers(complete), **{"show_default": True} | attributes)

    def make_metavar(self, ctx: click.Context) -> str:
        """See `click.Option.make_metavar`."""
        return self.metavar or _shown_type(self)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """See `click.Option.get_help_extra`."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, Number) and self.type.bounds:
            extra["range"] = self.type.bounds
        return extra


class CliArgument(click.Argument):
    """An argument whose values are completed in the shell by calling `complete`."""

    def __init__(self, names: Any, *, complete: Completer | None = None, **attributes: Any) -> None:
        super().__init__(names, shell_complete=_offers(complete), **attributes)

    def make_metavar(self, ctx: click.Context) -> str:
        """See `click.Argument.make_metavar`."""
        name = self.human_readable_name
        return f"{f'{{{name}}}' if self.required else f'[{name}]'}{'...' if self.nargs != 1 else ''}"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """See `click.Argument.get_help_record`."""
        extra = "  [required]" if self.required else ""
        return f"{self.human_readable_name} {_shown_type(self)}", f"{self.help or ''}{extra}"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """See `click.Argument.get_error_hint`."""
        return f"'{self.human_readable_name}'"


class Debug:
    """Stores whether --debug was given, either before or after the command."""

    on = False


def _debug(_context: click.Context, _param: click.Parameter, given: bool) -> None:
    Debug.on = Debug.on or given


def _offline(context: click.Context, _param: click.Parameter, given: bool) -> None:
    """Keep this command and its child processes offline."""
    if not given:
        return
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = OFFLINE_OPTION

    @context.call_on_close
    def _restore() -> None:
        if before is None:
            os.environ.pop(OFFLINE, None)
        else:
            os.environ[OFFLINE] = before


option = functools.partial(click.option, cls=CliOption)
offline_option = option(
    "--offline",
    is_flag=True,
    expose_value=False,
    callback=_offline,
    help="Do not use the network; use only local models and stored information about the hub.",
)
debug_option = option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show the traceback of an error."
)


class CliCommand(click.Command):
    """A command that has a --debug option and lists its arguments in --help."""

    def __init__(self, *args: Any, offline: bool = False, **attributes: Any) -> None:
        """offline: whether to add an --offline option."""
        super().__init__(*args, **attributes)
        if offline:
            offline_option(self)
        debug_option(self)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_arguments`."""
        rows = [one.get_help_record(ctx) for one in self.get_params(ctx) if isinstance(one, CliArgument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)


class CliGroup(click.Group):
    """A group that lists its commands in order of declaration, and suggests corrections for typos."""

    command_class = CliCommand

    def __init__(self, *args: Any, debug: bool = True, offline: bool = False, **attributes: Any) -> None:
        """debug, offline: whether the group itself has the options --debug and --offline."""
        super().__init__(*args, **{"subcommand_metavar": "COMMAND [ARGS]..."} | attributes)
        if offline:
            offline_option(self)
        if debug:
            debug_option(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group.list_commands`."""
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """See `click.Group.resolve_command`."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            near = difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.8)
            similar = ", ".join(map(repr, near or difflib.get_close_matches(args[0], self.commands)))
            ctx.fail(f"{error.message} Did you mean {similar}?" if similar else error.message)


class LazyCommands(UserDict[str, click.Command]):
    """Commands keyed by name, in the order that --help lists them, each imported on first use."""

    def __init__(self, package: str, places: dict[str, tuple[str, str]]) -> None:
        """places: maps each command to its module and function ("models.rm") and a summary."""
        super().__init__()
        self.data = {name: f"{package}.{place}" for name, (place, _) in places.items()}  # type: ignore[misc]
        self.summaries = {name: CliCommand(name, help=text) for name, (_, text) in places.items()}
        """Placeholder commands that have only a help text."""

    def __getitem__(self, name: str) -> click.Command:
        """Import and return a command."""
        place: Any = self.data[name]
        if isinstance(place, str):
            module, _, function = place.rpartition(".")
            self.data[name] = getattr(import_module(module), function)
        return self.data[name]


class CommandGroup(CliGroup):
    """The top-level group. Lists commands without importing them.

    Suggests `edgechat run guide` for `edgechat guide`.
    """

    commands: LazyCommands

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group.format_commands`."""
        CliGroup(None, commands=self.commands.summaries).format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """See `click.Group.shell_complete`."""
        from click.shell_completion import CompletionItem

        commands = self.commands.summaries.items()
        found = [
            CompletionItem(name, help=command.get_short_help_str())
            for name, command in commands
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """See `click.Group.make_context`."""
        with _own_endings():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group.invoke`."""
        with _own_endings():
            return super().invoke(ctx)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """See `click.Group.resolve_command`."""
        if ctx.resilient_parsing:  # for shell completion
            return super().resolve_command(ctx, args)
        if args[0] == "chat":
            ctx.fail(
                "No such command 'chat'. `edgechat` alone opens the app; `edgechat chats` lists stored "
                "conversations."
            )
        if self.get_command(ctx, args[0]) is None and _is_model(args[0]):
            suggest(ctx, args[0], ["edgechat", "run" if len(args) > 1 else "--model", *args])
        return super().resolve_command(ctx, args)


@contextlib.contextmanager
def _own_endings() -> Iterator[None]:
    """Make arguments quoted in usage errors safe for a terminal, and change how click ends the program.

    By default, click prints "Aborted!" on Ctrl+C, and fails if the program that reads its output closes the
    pipe.
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


def suggest(ctx: click.Context, word: str, command: list[str]) -> None:
    """Fail with a usage error that suggests a command."""
    ctx.fail(f"No such command {word!r}. Did you mean: {one_line(shlex.join(command))}")


def _is_model(word: str) -> bool:
    if word.endswith(".gguf") or os.path.isfile(word):
        return True
    from edgechat.models.local.resolve import entry_of, local_models
    from edgechat.models.local.stores import is_model_folder

    try:
        return entry_of(word) is not None or is_model_folder(Path(word)) or bool(local_models(word))
    except EdgechatError:
        return False


argument = functools.partial(click.argument, cls=CliArgument)
command = functools.partial(click.command, cls=CliCommand)
group = functools.partial(click.group, cls=CliGroup)
