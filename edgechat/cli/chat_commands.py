"""The commands that talk with a model and look after what was said: run, and chats with its own commands."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import typer

from edgechat.cli import completion
from edgechat.cli.group import ChatsGroup
from edgechat.cli.options import (
    MOST,
    AnywayOption,
    BackendOption,
    DebugOption,
    DraftOption,
    JsonOption,
    ModelArgument,
    OfflineOption,
    ScreenReaderOption,
)
from edgechat.cli.terminal_io import as_text

_SEEDS = 2**64
"""What the engine can be told."""
_Id = typer.Argument(
    metavar="ID",
    help="An id of `edgechat chats`, or the beginning of one.",
    autocompletion=completion.chats,
)
_TrashedId = typer.Argument(
    metavar="ID",
    help="An id of `edgechat chats --trash`, or the beginning of one.",
    autocompletion=completion.trashed_chats,
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    held = (
        "Without PROMPT in a terminal, run holds a conversation: /help lists its commands, Ctrl+C stops an "
        "answer, Ctrl+D ends it."
    )
    app.command("run", epilog=held)(run)
    chats = typer.Typer(cls=ChatsGroup, rich_markup_mode=None)
    chats.callback(invoke_without_command=True)(list_chats)
    chats.command("search")(search)
    chats.command("show")(show)
    chats.command("rename")(rename)
    chats.command("pin")(pin)
    chats.command("export")(export)
    chats.command("import")(import_chat)
    chats.command("rm")(rm)
    chats.command("restore")(restore)
    app.add_typer(chats, name="chats")


def run(
    model: ModelArgument,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="What to ask. What is piped in is put after it; - is only what is piped in.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt of a new conversation.")] = None,
    last: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last conversation of the command line.")
    ] = False,
    chat: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Go on with this conversation of `edgechat chats`.",
            autocompletion=completion.chats,
        ),
    ] = None,
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Leave no trace of the conversation on disk.")
    ] = False,
    overflow: Annotated[
        Literal["window", "error"] | None,
        typer.Option(help="Where the context is full, window leaves out the oldest turns; error refuses."),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=5, help="0 takes the likeliest token; more is more varied.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, max=MOST, help="Choose among so many tokens; 0: all.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Choose among this probability mass.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Drop tokens below this share of the likeliest one.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(min=0.01, max=5, help="1: none.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(min=-2, max=2, help="0: none.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(min=-2, max=2, help="0: none.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=_SEEDS - 1, help="The same seed gives the same text again.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Stop after so many tokens.")
    ] = None,
    ctx: Annotated[int | None, typer.Option(min=1, max=MOST, help="Tokens that the context holds.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given again.")] = None,
    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Switch a reasoning model's thinking on or off.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    screen_reader: ScreenReaderOption = False,
    draft: DraftOption = None,
    backend: BackendOption = None,
    load_anyway: AnywayOption = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Ask a model, and print the answer as it comes."""
    from edgechat.cli.chat.conversation import ConversationChoice
    from edgechat.cli.commands import run as command
    from edgechat.settings import SamplingDefaults

    if last and chat is not None:
        raise typer.BadParameter("--continue and --chat cannot both be", param_hint="--continue")
    if no_store and (last or chat is not None):
        raise typer.BadParameter(
            "goes with neither --continue nor --chat: what is said there is kept",
            param_hint="--no-store",
        )
    sampling = SamplingDefaults(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    for name, value in sampling.given().items():
        if not math.isfinite(value):  # a range does not refuse nan
            raise typer.BadParameter(f"{value} is no number", param_hint=f"--{name.replace('_', '-')}")
    options = command.RunOptions(
        model=model,
        prompt=None if prompt is None else as_text(prompt),
        system=None if system is None else as_text(system),
        sampling=sampling,
        seed=seed,
        max_tokens=max_tokens,
        context=ctx,
        stop=tuple(map(as_text, stop or ())),
        think=think,
        overflow=overflow,
        wanted=ConversationChoice(last=last, chat=None if chat is None else as_text(chat), keep=not no_store),
        json=json,
        draft=draft,
        backend=backend,
        anyway=load_anyway,
        screen_reader=screen_reader,
    )
    raise typer.Exit(command.run(options))


def list_chats(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="Show so many at most.")] = 20,
    trash: Annotated[
        bool, typer.Option("--trash", help="List what was deleted in the last 30 days.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the conversations that are kept, the latest first; search, show, export or delete them."""
    if context.invoked_subcommand is not None:
        if json:
            raise typer.BadParameter(
                f"goes after the command: edgechat chats {context.invoked_subcommand} ID --json",
                param_hint="--json",
            )
        return
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.list_chats(limit=limit, json=json, trash=trash))


def show(chat: Annotated[str, _Id], json: JsonOption = False, debug: DebugOption = False) -> None:
    """Print a conversation as Markdown."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.show(as_text(chat), json=json))


def search(
    words: Annotated[
        list[str],
        typer.Argument(metavar="WORDS", help="All of them must occur; the last may be half a word."),
    ],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show so many at most.")] = 20,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find what was said in any conversation, the best first."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.search([as_text(word) for word in words], limit=limit, json=json))


def rename(
    chat: Annotated[str, _Id],
    title: Annotated[str, typer.Argument(metavar="TITLE", help='"" takes the first words that were said.')],
    debug: DebugOption = False,
) -> None:
    """Give a conversation another title."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.rename(as_text(chat), as_text(title)))


def pin(
    chat: Annotated[str, _Id],
    off: Annotated[bool, typer.Option("--off", help="Pin it no longer.")] = False,
    debug: DebugOption = False,
) -> None:
    """Keep a conversation at the top of the app's list."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.pin(as_text(chat), off=off))


def export(
    chat: Annotated[str, _Id],
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Where to; without it, it is printed.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="All of it, to be imported again, instead of Markdown.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a conversation to a file, as Markdown or as JSON."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.export(as_text(chat), file, json=json, force=force))


def import_chat(
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON of an export; - reads what is piped in.")],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Read a conversation that was exported, or a list of messages as OpenAI's API takes it."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.import_chat(file, json=json))


def rm(
    chats: Annotated[list[str], _Id],
    now: Annotated[
        bool, typer.Option("--now", help="For good, also from the trash, which keeps them for 30 days else.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    debug: DebugOption = False,
) -> None:
    """Delete conversations, and what was computed of them."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.rm([as_text(chat) for chat in chats], yes=yes, now=now))


def restore(chats: Annotated[list[str], _TrashedId], debug: DebugOption = False) -> None:
    """Bring conversations back from the trash."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.restore([as_text(chat) for chat in chats]))
