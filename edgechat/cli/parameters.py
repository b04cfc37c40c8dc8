"""Options, arguments and commands: click's, with the types of values in --help."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

Completer = Callable[[str], list[tuple[str, str]]]
"""From the beginning of a value to the values that begin so, each with a description."""


class Number(click.ParamType[Any]):
    """A number, with inclusive bounds."""

    def __init__(self, kind: type[int | float], min: float | None = None, max: float | None = None) -> None:
        self.kind, self.min, self.max = kind, min, max
        self.name = kind.__name__ if min is max is None else f"{kind.__name__} range"

    @property
    def bounds(self) -> str:
        """The bounds as --help shows them: 0<=x<=5."""
        if self.min is None:
            return "" if self.max is None else f"x<={self.max}"
        return f"x>={self.min}" if self.max is None else f"{self.min}<=x<={self.max}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click; not a number (nan) is outside any bounds."""
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
    """Return the type of a value as --help shows it: <int>, <a|b>, <list[str]>."""
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
    """An option; `complete` gives its values to a shell."""

    def __init__(self, names: Any, *, complete: Completer | None = None, **attributes: Any) -> None:
        super().__init__(names, shell_complete=_offers(complete), **{"show_default": True} | attributes)

    def make_metavar(self, ctx: click.Context) -> str:
        """See click."""
        return self.metavar or _shown_type(self)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """See click."""
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, Number) and self.type.bounds:
            extra["range"] = self.type.bounds
        return extra


class CliArgument(click.Argument):
    """An argument; `complete` gives its values to a shell."""

    def __init__(self, names: Any, *, complete: Completer | None = None, **attributes: Any) -> None:
        super().__init__(names, shell_complete=_offers(complete), **attributes)

    def make_metavar(self, ctx: click.Context) -> str:
        """See click."""
        name = self.human_readable_name
        return f"{f'{{{name}}}' if self.required else f'[{name}]'}{'...' if self.nargs != 1 else ''}"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """See click."""
        extra = "  [required]" if self.required else ""
        return f"{self.human_readable_name} {_shown_type(self)}", f"{self.help or ''}{extra}"

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """See click."""
        return f"'{self.human_readable_name}'"


class CliCommand(click.Command):
    """A command whose --help has its arguments under a heading of their own."""

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        rows = [one.get_help_record(ctx) for one in self.get_params(ctx) if isinstance(one, CliArgument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)


option = functools.partial(click.option, cls=CliOption)
argument = functools.partial(click.argument, cls=CliArgument)
command = functools.partial(click.command, cls=CliCommand)


class DeclaredCommands(UserDict[str, click.Command]):
    """The commands of a group by name, in the order of --help; each is imported when it is used."""

    def __init__(self, package: str, places: dict[str, str]) -> None:
        """`places`: the module and the function of each command: "model_commands.show"."""
        super().__init__()
        self.data = {name: f"{package}.{place}" for name, place in places.items()}  # type: ignore[misc]

    def __getitem__(self, name: str) -> click.Command:
        """Return a command, imported by now."""
        place: Any = self.data[name]
        if isinstance(place, str):
            module, _, function = place.rpartition(".")
            self.data[name] = getattr(import_module(module), function)
        return self.data[name]
