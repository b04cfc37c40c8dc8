"""The `edgechat` command: its options, and the one place where errors become text and exit codes.

Imports of what a command needs are inside the command: `edgechat --version` takes 0.08 s, of which typer
is half; importing the app or the engine here would triple that.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from edgechat import __version__
from edgechat.cli import shelf, talk
from edgechat.cli.edge import complain
from edgechat.cli.group import Commands
from edgechat.cli.options import AnywayOption, Debug, DebugOption, DraftOption, ScreenReaderOption
from edgechat.errors import EdgechatError

USAGE_ERROR = 2
ENGINE_FAILURE = 3
INTERRUPTED = 130

app = typer.Typer(
    name="edgechat",
    cls=Commands,
    help="Chat with a language model on your own machine.",
    add_completion=True,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"edgechat {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def chat(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="The model to chat with: a file, or a name of `edgechat list`."),
    ] = None,
    draft: DraftOption = None,
    load_anyway: AnywayOption = False,
    screen_reader: ScreenReaderOption = False,
    debug: DebugOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Open the chat, or run a command."""
    if context.invoked_subcommand is not None:
        if model is not None:
            raise typer.BadParameter(
                f"goes with the app; write `edgechat {context.invoked_subcommand} MODEL`"
            )
        if draft is not None:
            raise typer.BadParameter("goes after the command", param_hint="--draft")
        if screen_reader:
            raise typer.BadParameter(
                "goes with the app, or after run: edgechat run MODEL --screen-reader",
                param_hint="--screen-reader",
            )
        return
    if screen_reader or _wants_lines():
        from edgechat.cli import run as lines

        options = lines.Options(
            model=model, draft=draft, anyway=load_anyway, screen_reader=True, converse=True
        )
        raise typer.Exit(lines.run(options))
    if os.environ.get("TERM") == "dumb" and sys.stdout.isatty():
        complain(
            "edgechat opens an app that fills the terminal, and this one (TERM=dumb) cannot be drawn on.",
            "Talk line by line instead: edgechat --screen-reader",
        )
        raise typer.Exit(USAGE_ERROR)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        complain(
            "edgechat opens an app that fills the terminal, and there is no terminal here.",
            'Ask a single question instead: edgechat run guide "What is edgechat?"',
        )
        raise typer.Exit(USAGE_ERROR)
    from edgechat.tui.app import run_app

    raise typer.Exit(run_app(model, anyway=load_anyway, draft=draft))


def _wants_lines() -> bool:
    """Say whether the settings ask for the plain mode; what is wrong with them the app says."""
    from edgechat import settings

    with contextlib.suppress(EdgechatError):
        return settings.load().screen_reader
    return False


talk.add_to(app)


@app.command()
def device(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure the speed again, which is otherwise done once.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Show what this machine can carry: processor, memory, GPUs, speed, disk, and llama.cpp's build."""
    from edgechat.cli import device as command

    raise typer.Exit(command.run(json=json, refresh=refresh))


@app.command(epilog="The exit code is 1 where nothing fits.")
def plan(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Files, names, or owner/repo on the hub. None: the whole catalogue."),
    ] = None,
    ctx: Annotated[int | None, typer.Option(min=1, help="Tokens that the context should hold.")] = None,
    min_tps: Annotated[float | None, typer.Option(min=0, help="Tokens a second, at least.")] = None,
    quality: Annotated[
        str | None, typer.Option(help="poor, reduced, good, high, near-lossless or reference, at least.")
    ] = None,
    ram: Annotated[str | None, typer.Option(help="Plan for a machine with so much memory: 8GiB.")] = None,
    vram: Annotated[str | None, typer.Option(help="... and such a GPU: 6GiB; 0: without one.")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="... whose memory gives so much: 50GB/s.")] = None,
    draft: DraftOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the hub.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show what would fit and how fast it would be, before anything is downloaded or loaded."""
    from edgechat.cli import plan as command
    from edgechat.cli.quantities import amount, rate, steps
    from edgechat.planner.machine import Described
    from edgechat.planner.wishes import Wishes

    options = command.Options(
        models=tuple(models or ()),
        described=Described(ram=amount("--ram", ram), vram=amount("--vram", vram), bandwidth=rate(bandwidth)),
        wishes=Wishes(context=ctx, min_tps=min_tps, quality=steps(quality), draft=draft),
        offline=offline,
        json=json,
    )
    raise typer.Exit(command.run(options))


@app.command(
    epilog="Stopped or cut off, the same command goes on where it was. What is here is not fetched again."
)
def pull(
    model: Annotated[str, typer.Argument(help="A catalogue name, owner/repo[:QUANT], or its address.")],
    quant: Annotated[str | None, typer.Option(help="The quantization: Q5_K_M.")] = None,
    auto_quant: Annotated[
        bool, typer.Option("--auto-quant", help="Let the planner choose it, as it does by itself.")
    ] = False,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|MODEL",
            help="auto: the catalogue's draft model too, where it fits beside and is much smaller.",
            show_default=False,
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch, tag or commit.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be downloaded.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Download it although it does not fit.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only say what is here.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    debug: DebugOption = False,
) -> None:
    """Download a model in the quantization that suits this machine, into the cache that other tools share."""
    from edgechat.cli import pull as command

    if quant and auto_quant:
        raise typer.BadParameter("--quant and --auto-quant cannot both be", param_hint="--quant")
    options = command.Options(
        model=model,
        quant=quant,
        draft=draft,
        revision=revision,
        dry_run=dry_run,
        force=force,
        offline=offline,
        json=json,
    )
    raise typer.Exit(command.run(options))


@app.command()
def bench(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or a name of `edgechat list`.")],
    ctx: Annotated[int | None, typer.Option(min=512, help="Tokens that the context holds.")] = None,
    draft: DraftOption = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of each way of decoding.")] = 5,
    tokens: Annotated[int, typer.Option(min=8, max=1024, help="Tokens of a reply.")] = 48,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it too, as PNG.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    load_anyway: AnywayOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure a model here: speeds, memory, and what drafts do for it, against a bare loop of llama.cpp."""
    from edgechat.cli import bench as command
    from edgechat.planner.wishes import Wishes

    wishes = Wishes(context=ctx, draft=draft, anyway=load_anyway)
    options = command.Options(model, wishes, rounds=rounds, tokens=tokens, plot=plot, json=json)
    raise typer.Exit(command.run(options))


@app.command(epilog="The exit code is 0 when nothing is wrong, 1 when something is; notes do not count.")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: DebugOption = False,
) -> None:
    """Look for what keeps edgechat from working well here, and say what to do about it."""
    from edgechat.cli import doctor as command

    raise typer.Exit(command.run(json=json))


shelf.add_to(app)


def run_cli() -> int:
    """Run the command line and return its exit code: 0 fine, 1 a user's error, 2 usage, 3 engine failure."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for the life of the process)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows a question mark; the answer goes on.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return translated(lambda: app(standalone_mode=True))


def translated(work: Callable[[], object]) -> int:
    """Run `work`; errors become text on stderr and an exit code, with --debug after their traceback."""
    try:
        try:
            work()
        finally:
            sys.stdout.flush()  # while what goes wrong can still be told
    except SystemExit as done:
        if isinstance(done.__context__, BrokenPipeError):  # typer makes it an exit code of 1
            return _unread()
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except Exception as error:
        return _told(error)
    return 0


def _told(error: Exception) -> int:
    if Debug.on:
        import traceback

        from edgechat.text import printable

        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if isinstance(error, EdgechatError):
        complain(error.message, error.hint)
        return error.exit_code
    if isinstance(error, OSError):
        _let_go_of_stdout()
        where = f"{error.filename}: " if error.filename else ""
        complain(
            f"The system does not let edgechat read or write: {where}{error.strerror or error}.",
            "See that the disk is not full and the folder is yours; --debug shows what edgechat did.",
        )
    else:
        complain(
            f"edgechat has a fault of its own: {type(error).__name__}: {error}",
            "Run it again with --debug and report what it prints.",
        )
    return ENGINE_FAILURE


def _unread() -> int:
    """Whoever read our output has seen enough; that is no failure, also under `set -o pipefail`."""
    _let_go_of_stdout()
    return 0


def _let_go_of_stdout() -> None:
    # What it still holds would fail once more as Python ends, with a traceback.
    with contextlib.suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())  # type: ignore[union-attr]
