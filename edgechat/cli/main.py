"""The `edgechat` command: its options, and the one place where errors become text and exit codes.

Commands are imported when they are used, and import what they need when they run.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Literal

import click
from click.exceptions import Exit

from edgechat import __version__
from edgechat.base.errors import EdgechatError
from edgechat.base.text import printable
from edgechat.cli import completion
from edgechat.cli.group import INTERRUPTED, CommandGroup
from edgechat.cli.options import (
    Debug,
    adapters_of,
    anyway_option,
    backend_option,
    debug_option,
    draft_option,
    lora_option,
    no_vision_option,
    offline_option,
    screen_reader_option,
    workers_option,
)
from edgechat.cli.parameters import DeclaredCommands, option
from edgechat.cli.terminal_io import USAGE_ERROR, complain, is_interactive

ENGINE_FAILURE = 3
_COMMANDS = DeclaredCommands(
    "edgechat.cli.declarations",
    {
        "run": "run_command.run",
        "serve": "server_commands.serve",
        "launch": "server_commands.launch",
        "device": "machine_commands.device",
        "plan": "machine_commands.plan",
        "pull": "machine_commands.pull",
        "bench": "machine_commands.bench",
        "doctor": "machine_commands.doctor",
        "worker": "machine_commands.worker",
        "list": "model_commands.list_models",
        "show": "model_commands.show",
        "rm": "model_commands.rm",
        "import": "model_commands.import_file",
        "verify": "model_commands.verify",
        "quantize": "model_commands.quantize",
        "chats": "chat_commands.chats",
        "mcp": "tool_commands.mcp",
        "remote": "remote_commands.remote",
        "docs": "document_commands.docs",
    },
)


def _print_version(context: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        click.echo(f"edgechat {__version__}")
        raise Exit


def _install_completion(context: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        from edgechat.cli import shell_completion

        shell_completion.install()
        raise Exit


def _show_completion(context: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        from edgechat.cli import shell_completion

        shell_completion.show()
        raise Exit


@click.group(
    "edgechat",
    cls=CommandGroup,
    commands=_COMMANDS,
    invoke_without_command=True,
    help="Chat with a language model on your own machine.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@option(
    "--model",
    "-m",
    help="The model to chat with: a file, or a name shown by `edgechat list`.",
    complete=completion.local_models,
)
@option("last", "--continue", "-c", is_flag=True, help="Open the last conversation of the app.")
@draft_option
@lora_option
@backend_option
@no_vision_option
@workers_option
@anyway_option
@screen_reader_option
@offline_option
@debug_option
@option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@option(
    "--install-completion",
    is_flag=True,
    expose_value=False,
    callback=_install_completion,
    help="Install completion for the current shell.",
)
@option(
    "--show-completion",
    is_flag=True,
    expose_value=False,
    callback=_show_completion,
    help="Show completion for the current shell, to copy it or customize the installation.",
)
@click.pass_context
def app(
    context: click.Context,
    model: str | None,
    last: bool,
    draft: str | None,
    lora: tuple[str, ...],
    backend: Literal["llama.cpp", "mlx"] | None,
    no_vision: bool,
    workers: tuple[str, ...] | None,
    load_anyway: bool,
    screen_reader: bool,
) -> None:
    """Open the chat, or run a command."""
    from edgechat.base import logs  # 11 ms, which `edgechat --version` need not pay

    logs.to_file()
    if context.invoked_subcommand is not None:
        if model is not None:
            raise click.BadParameter(
                f"applies only to the app; use `edgechat {context.invoked_subcommand} MODEL`"
            )
        for_app = (("--draft", draft), ("--backend", backend), ("--lora", lora), ("--with", workers))
        for option, given in for_app:
            if given:
                raise click.BadParameter("must follow the command", param_hint=option)
        if last:
            where = "applies to the app, or to run: edgechat run MODEL --continue"
            raise click.BadParameter(where, param_hint="--continue")
        if no_vision:
            raise click.BadParameter("must follow the command", param_hint="--no-vision")
        if screen_reader:
            where = "applies to the app, or to run: edgechat run MODEL --screen-reader"
            raise click.BadParameter(where, param_hint="--screen-reader")
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
            workers=workers,
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
        raise Exit(USAGE_ERROR)
    if not is_interactive() or not sys.stderr.isatty():  # it is drawn on stderr
        complain(
            "The app needs a terminal, and there is none.",
            'To ask a single question: edgechat run guide "What is edgechat?"',
        )
        raise Exit(USAGE_ERROR)
    from edgechat.tui.app import StartOptions, run_app

    start = StartOptions(
        model,
        last=last,
        anyway=load_anyway,
        draft=draft,
        backend=backend,
        vision=not no_vision,
        adapters=adapters_of(lora),
        workers=workers,
    )
    raise Exit(run_app(start))


def _settings_ask_for_plain_mode() -> bool:
    """Return whether the settings ask for the plain mode; the app reports what is wrong with them."""
    from edgechat import settings

    with contextlib.suppress(EdgechatError):
        return settings.load().screen_reader
    return False


def run_cli() -> int:
    """Run the command line and return its exit code: 0 fine, 1 a user's error, 2 usage, 3 engine failure."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the parent process has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for the life of the process)
    for stream in (sys.stdout, sys.stderr):
        # Letters that a terminal cannot show become question marks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return translated(_run)


def _run() -> None:
    asked = os.environ.get(completion.VARIABLE)
    if asked:
        from edgechat.cli import shell_completion

        sys.exit(shell_completion.answer(app, "edgechat", asked))
    app(prog_name="edgechat")  # named, because a frozen program is edgechat.exe


def translated(work: Callable[[], object]) -> int:
    """Run `work`; errors become text on stderr and an exit code, with --debug after their traceback."""
    try:
        try:
            work()
        finally:
            sys.stdout.flush()  # while errors can still be reported
    except SystemExit as done:
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
