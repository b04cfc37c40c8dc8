"""The `edgechat` command: its options, and the one place where errors become messages and exit codes.

The module of a command is not imported until that command is called.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable

import click
from click.exceptions import Exit

from edgechat import __version__
from edgechat.base.errors import EdgechatError
from edgechat.base.text import printable
from edgechat.cli import completion
from edgechat.cli.declaring import (
    INTERRUPTED,
    CommandGroup,
    Debug,
    LazyCommands,
    debug_option,
    offline_option,
    option,
)
from edgechat.cli.options import LoadOptions, load_options, screen_reader_option
from edgechat.cli.terminal_io import USAGE_ERROR, complain, is_interactive

ENGINE_FAILURE = 3
_COMMANDS = LazyCommands(
    "edgechat.cli",
    {
        "run": ("chat.run.run", "Ask a model, and print the answer as it is generated."),
        "serve": (
            "commands.serve.serve",
            "Serve models to editors, scripts and agents on this machine, as OpenAI, Anthropic and "
            "Ollama do.",
        ),
        "launch": (
            "commands.launch.launch",
            "Start a coding agent on a model of this machine; its configuration files are not changed.",
        ),
        "device": (
            "commands.device.device",
            "Show the hardware of this machine: CPU, memory, GPUs, speed, disk, and the llama.cpp build.",
        ),
        "plan": (
            "commands.plan.plan",
            "Show which models fit and how fast they would be, without downloading or loading anything.",
        ),
        "pull": (
            "commands.pull.pull",
            "Download a model in the best quantization for this machine, into the hub's cache.",
        ),
        "bench": (
            "commands.bench.bench",
            "Measure a model on this machine: speed, memory and drafts, or what its quantizations lose.",
        ),
        "doctor": ("commands.doctor.doctor", "Look for problems on this machine, and say how to fix them."),
        "worker": (
            "commands.device.worker",
            "Lend this machine's memory to another one: `edgechat run MODEL --with ssh://HOST` there "
            "starts this.",
        ),
        "list": (
            "commands.models.list_models",
            "List the models on this machine, whichever tool downloaded them, and whether they fit now.",
        ),
        "show": (
            "commands.show.show",
            "Show what a model is, where it is stored, and how it would be loaded.",
        ),
        "rm": (
            "commands.models.rm",
            "Remove a model from edgechat's folder or the hub's cache; models of other tools are left to "
            "them.",
        ),
        "import": (
            "commands.models.import_file",
            "Add your own model to edgechat's folder, sharing the file's disk space where possible.",
        ),
        "verify": (
            "commands.models.verify_models",
            "Check that models on disk are undamaged, by their hashes where those are known.",
        ),
        "quantize": (
            "commands.quantize.quantize",
            "Make a smaller model of one in 16 or 32 bits, into edgechat's folder.",
        ),
        "chats": (
            "commands.chats.chats",
            "List stored conversations, latest first; search, show, export or delete them.",
        ),
        "mcp": (
            "commands.mcp.mcp",
            "Add, list and try tool servers (MCP), whose tools a model can call in a chat.",
        ),
        "remote": (
            "commands.remote.remote",
            "Add, list and try other servers, whose models answer as NAME/MODEL (vLLM, Ollama, ...).",
        ),
        "docs": (
            "commands.documents.docs",
            "Add, list and search documents, about which models can be asked.",
        ),
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
    debug=False,
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
@load_options(engine=False)
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
    load: LoadOptions,
    screen_reader: bool,
) -> None:
    """Open the chat, or run a command."""
    from edgechat.base import logs  # takes 11 ms, and `edgechat --version` does not need it

    logs.to_file()
    if context.invoked_subcommand is not None:
        if model is not None:
            raise click.BadParameter(
                f"applies only to the app; use `edgechat {context.invoked_subcommand} MODEL`"
            )
        for_app = {
            "--draft": load.draft,
            "--backend": load.backend,
            "--lora": load.lora,
            "--with": load.workers,
            "--no-vision": load.no_vision or None,
        }
        for option, given in for_app.items():
            if given is not None:
                raise click.BadParameter("must follow the command", param_hint=option)
        if last:
            where = "applies to the app, or to run: edgechat run MODEL --continue"
            raise click.BadParameter(where, param_hint="--continue")
        if screen_reader:
            where = "applies to the app, or to run: edgechat run MODEL --screen-reader"
            raise click.BadParameter(where, param_hint="--screen-reader")
        return
    if screen_reader or _settings_ask_for_plain_mode():
        from edgechat.chat.generation_options import CommandLineOptions
        from edgechat.cli.chat.conversation import ConversationChoice, RunOptions
        from edgechat.cli.chat.run import run_with

        options = RunOptions(
            model,
            choice=ConversationChoice(last=last),
            generation=CommandLineOptions(adapters=load.lora),
            request=load.request(),
            screen_reader=True,
            interactive=True,
        )
        run_with(options)
        return
    if os.environ.get("TERM") == "dumb" and sys.stdout.isatty():
        complain(
            "The app needs a terminal that can be drawn on, but this one (TERM=dumb) cannot be.",
            "Chat line by line instead: edgechat --screen-reader",
        )
        raise Exit(USAGE_ERROR)
    if not is_interactive() or not sys.stderr.isatty():  # the app is drawn on stderr
        complain(
            "The app needs a terminal, but there is none.",
            'To ask a single question: edgechat run guide "What is edgechat?"',
        )
        raise Exit(USAGE_ERROR)
    from edgechat.tui.app import StartOptions, run_app

    raise Exit(run_app(StartOptions(model, last=last, request=load.request)))


def _settings_ask_for_plain_mode() -> bool:
    """Return whether the settings ask for plain mode. If they are invalid, the app reports it."""
    from edgechat import settings

    with contextlib.suppress(EdgechatError):
        return settings.load().screen_reader
    return False


def run_cli() -> int:
    """Run the command line and return its exit code: 0 success, 1 user error, 2 usage, 3 engine failure."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (open until the program ends)
    for stream in (sys.stdout, sys.stderr):
        # Print question marks for characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return translated(_run)


def _run() -> None:
    asked = os.environ.get(completion.VARIABLE)
    if asked:
        from edgechat.cli import shell_completion

        sys.exit(shell_completion.answer(app, "edgechat", asked))
    app(prog_name="edgechat")  # set explicitly, because the packaged program might be called edgechat.exe


def translated(work: Callable[[], object]) -> int:
    """Run `work` and return the exit code.

    Errors are reported on stderr, after a traceback if --debug was given.
    """
    try:
        try:
            work()
        finally:
            sys.stdout.flush()  # do this now, while errors can still be reported
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return 0  # with `set -o pipefail`, a reader that stops early must not look like a failure
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

        logs.to_file()  # in case the error came before the log file was opened
        logging.getLogger(__name__).error("a fault of edgechat's own", exc_info=error)
        complain(
            f"Internal error in edgechat: {type(error).__name__}: {error}",
            "Run the command again with --debug, and report the output.",
        )
    return ENGINE_FAILURE


def _discard_stdout() -> None:
    # Otherwise, flushing the buffer at exit would fail again and print a traceback.
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
