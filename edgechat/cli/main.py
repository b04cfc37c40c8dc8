"""The `edgechat` command: its options, and the one place where errors become text and exit codes.

Commands import what they need when they run: `edgechat --version` takes 0.08 s, half of it for typer;
importing the app or the engine here would triple that.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from edgechat import __version__
from edgechat.base.errors import EdgechatError
from edgechat.base.text import printable
from edgechat.cli import completion
from edgechat.cli.declarations import (
    chat_commands,
    document_commands,
    machine_commands,
    model_commands,
    remote_commands,
    server_commands,
    tool_commands,
)
from edgechat.cli.group import CommandGroup
from edgechat.cli.options import (
    AnywayOption,
    BackendOption,
    Debug,
    DebugOption,
    DraftOption,
    LoraOption,
    NoVisionOption,
    OfflineOption,
    ScreenReaderOption,
    WorkersOption,
    adapters_of,
    workers_of,
)
from edgechat.cli.terminal_io import USAGE_ERROR, complain, is_interactive

ENGINE_FAILURE = 3
INTERRUPTED = 130

app = typer.Typer(
    name="edgechat",
    cls=CommandGroup,
    help="Chat with a language model on your own machine.",
    add_completion=True,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"edgechat {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def chat(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model to chat with: a file, or a name shown by `edgechat list`.",
            autocompletion=completion.local_models,
        ),
    ] = None,
    last: Annotated[
        bool, typer.Option("--continue", "-c", help="Open the last conversation of the app.")
    ] = False,
    draft: DraftOption = None,
    lora: LoraOption = None,
    backend: BackendOption = None,
    no_vision: NoVisionOption = False,
    workers: WorkersOption = None,
    load_anyway: AnywayOption = False,
    screen_reader: ScreenReaderOption = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Open the chat, or run a command."""
    from edgechat.base import logs  # 11 ms, which `edgechat --version` need not pay

    logs.to_file()
    if context.invoked_subcommand is not None:
        if model is not None:
            raise typer.BadParameter(
                f"applies only to the app; use `edgechat {context.invoked_subcommand} MODEL`"
            )
        for_app = (("--draft", draft), ("--backend", backend), ("--lora", lora), ("--with", workers))
        for option, given in for_app:
            if given:
                raise typer.BadParameter("must follow the command", param_hint=option)
        if last:
            where = "applies to the app, or to run: edgechat run MODEL --continue"
            raise typer.BadParameter(where, param_hint="--continue")
        if no_vision:
            raise typer.BadParameter("must follow the command", param_hint="--no-vision")
        if screen_reader:
            where = "applies to the app, or to run: edgechat run MODEL --screen-reader"
            raise typer.BadParameter(where, param_hint="--screen-reader")
        return
    if screen_reader or _settings_ask_for_plain_mode():
        from edgechat.chat.generation_options import CommandLineOptions
        from edgechat.cli.chat.conversation import ConversationChoice
        from edgechat.cli.commands import run as command

        options = command.RunOptions(
            model,
            choice=ConversationChoice(last=last),
            generation=CommandLineOptions(adapters=adapters_of(lora)),
            draft=draft,
            backend=backend,
            vision=not no_vision,
            workers=workers_of(workers),
            anyway=load_anyway,
            screen_reader=True,
            interactive=True,
        )
        command.run(options)
        return
    if os.environ.get("TERM") == "dumb" and sys.stdout.isatty():
        complain(
            "The app needs a terminal that can be drawn on, and this one (TERM=dumb) cannot.",
            "Chat line by line instead: edgechat --screen-reader",
        )
        raise typer.Exit(USAGE_ERROR)
    if not is_interactive() or not sys.stderr.isatty():  # it is drawn on stderr
        complain(
            "The app needs a terminal, and there is none.",
            'To ask a single question: edgechat run guide "What is edgechat?"',
        )
        raise typer.Exit(USAGE_ERROR)
    from edgechat.tui.app import run_app

    raise typer.Exit(
        run_app(
            model,
            last=last,
            anyway=load_anyway,
            draft=draft,
            backend=backend,
            vision=not no_vision,
            adapters=adapters_of(lora),
            workers=workers_of(workers),
        )
    )


def _settings_ask_for_plain_mode() -> bool:
    """Return whether the settings ask for the plain mode; the app reports what is wrong with them."""
    from edgechat import settings

    with contextlib.suppress(EdgechatError):
        return settings.load().screen_reader
    return False


chat_commands.add_to(app)
server_commands.add_to(app)
machine_commands.add_to(app)
model_commands.add_to(app)
tool_commands.add_to(app)
remote_commands.add_to(app)
document_commands.add_to(app)


def run_cli() -> int:
    """Run the command line and return its exit code: 0 fine, 1 a user's error, 2 usage, 3 engine failure."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the parent process has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for the life of the process)
    for stream in (sys.stdout, sys.stderr):
        # Letters that a terminal cannot show become question marks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    completion.avoid_rich()
    # Named, because a frozen edgechat.exe would be called so, and completion of `edgechat` not work.
    return translated(lambda: app(prog_name="edgechat", standalone_mode=True))


def translated(work: Callable[[], object]) -> int:
    """Run `work`; errors become text on stderr and an exit code, with --debug after their traceback."""
    try:
        try:
            work()
        finally:
            sys.stdout.flush()  # while errors can still be reported
    except SystemExit as done:
        if isinstance(done.__context__, BrokenPipeError):  # typer makes it an exit code of 1
            return _output_closed()
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _output_closed()
    except Exception as error:
        return _report(error)
    return 0


def _report(error: Exception) -> int:
    if Debug.on:
        import traceback

        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, EdgechatError):
        complain(error.message, error.hint)
        return error.exit_code
    if isinstance(error, OSError):
        _discard_stdout()
        where = f"{error.filename}: " if error.filename else ""
        complain(
            f"A file could not be read or written: {where}{error.strerror or error}.",
            "Check the free disk space and the permissions of the folder; --debug shows a traceback.",
        )
    else:
        import logging

        from edgechat.base import logs

        logs.to_file()  # again: the error may have come before any command
        logging.getLogger(__name__).error("a fault of edgechat's own", exc_info=error)
        complain(
            f"Internal error in edgechat: {type(error).__name__}: {error}",
            "Run the command again with --debug, and report the output.",
        )
    return ENGINE_FAILURE


def _output_closed() -> int:
    """End successfully when the reader of our output has closed it, for the sake of `set -o pipefail`."""
    _discard_stdout()
    return 0


def _discard_stdout() -> None:
    # What is still buffered would fail once more as Python exits, with a traceback.
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
