"""The commands for conversations: run, and chats with its subcommands."""

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
    EngineOption,
    JsonOption,
    LoraOption,
    ModelArgument,
    NoVisionOption,
    OfflineOption,
    QuantOption,
    ScreenReaderOption,
    WorkersOption,
    adapters_of,
    engine_model,
    workers_of,
)
from edgechat.cli.terminal_io import as_text

_MOST_SEED = 2**64 - 1
"""The largest that the engine takes."""
_Id = typer.Argument(
    metavar="ID",
    help="An id shown by `edgechat chats`, or its first characters.",
    autocompletion=completion.chats,
)
_TrashedId = typer.Argument(
    metavar="ID",
    help="An id shown by `edgechat chats --trash`, or its first characters.",
    autocompletion=completion.trashed_chats,
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    epilog = (
        "In a terminal, without PROMPT, a conversation starts: /help lists its commands, Ctrl+C stops an "
        "answer, Ctrl+D ends the program."
    )
    app.command("run", epilog=epilog)(run)
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
            help="The question. Text piped in is appended to it; - uses only the piped text.",
        ),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Send an image with the question; can be repeated. - takes it from standard input.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt of a new conversation.")] = None,
    last: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the last conversation of the command line.")
    ] = False,
    chat: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Continue the conversation with this id; `edgechat chats` lists them.",
            autocompletion=completion.chats,
        ),
    ] = None,
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Keep nothing of the conversation on disk.")
    ] = False,
    overflow: Annotated[
        Literal["window", "error"] | None,
        typer.Option(
            help="When the context is full, window leaves out the oldest turns; error refuses the question."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=5, help="0 always takes the most likely token; higher values vary more."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, help="Sample from this many of the most likely tokens; 0: from all."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Sample from the most likely tokens that have this probability together."
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Drop tokens less likely than this share of the most likely one."),
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(min=0.01, max=5, help="1: none.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(min=-2, max=2, help="0: none.")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(min=-2, max=2, help="0: none.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=_MOST_SEED, help="The same seed reproduces the same text.")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Stop after this many tokens; after calls of tools, after as many again."
        ),
    ] = None,
    ctx: Annotated[int | None, typer.Option(min=1, max=MOST, help="Context length, in tokens.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; can be repeated.")] = None,
    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Switch a reasoning model's thinking on or off.")
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,...]",
            help="Let the model call the tools of these servers, or built-in ones; `edgechat mcp list` lists "
            "them.",
        ),
    ] = None,
    yes: Annotated[
        str | None,
        typer.Option(
            metavar="TOOL[,...]",
            help="Call these tools without asking: SERVER/TOOL, or SERVER for all of its tools. Without a "
            "terminal, no others are called but those that can do no harm, such as the calculator.",
        ),
    ] = None,
    docs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Answer from these documents, with citations; can be repeated. `edgechat docs list` lists "
            "them.",
            autocompletion=completion.documents,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="In a terminal too, print Markdown as the model writes it.")
    ] = False,
    screen_reader: ScreenReaderOption = False,
    draft: DraftOption = None,
    lora: LoraOption = None,
    backend: BackendOption = None,
    engine: EngineOption = None,
    quant: QuantOption = None,
    no_vision: NoVisionOption = False,
    workers: WorkersOption = None,
    load_anyway: AnywayOption = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Ask a model, and print the answer as it is generated."""
    from edgechat.chat.generation_options import CommandLineOptions
    from edgechat.cli.chat.conversation import ConversationChoice
    from edgechat.cli.commands import run as command
    from edgechat.settings import SamplingDefaults

    if last and chat is not None:
        raise typer.BadParameter("cannot be used together with --chat", param_hint="--continue")
    if no_store and (last or chat is not None):
        raise typer.BadParameter(
            "cannot be used with --continue or --chat: those conversations are stored",
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
            raise typer.BadParameter(f"{value} is not a number", param_hint=f"--{name.replace('_', '-')}")
    options = command.RunOptions(
        model=engine_model(engine, model, quant),
        prompt=None if prompt is None else as_text(prompt),
        images=tuple(image or ()),
        system=None if system is None else as_text(system),
        generation=CommandLineOptions(
            sampling=sampling,
            seed=seed,
            max_tokens=max_tokens,
            stop=tuple(map(as_text, stop or ())),
            think=think,
            overflow=overflow,
            adapters=adapters_of(lora),
            documents=None if docs is None else tuple(map(as_text, docs)),
        ),
        context=ctx,
        choice=ConversationChoice(last=last, chat=None if chat is None else as_text(chat), keep=not no_store),
        tools=None if tools is None else as_text(tools),
        yes=tuple(name.strip() for name in as_text(yes or "").split(",") if name.strip()),
        json=json,
        raw=raw,
        draft=draft,
        backend=backend,
        runtime_quant=quant,
        vision=not no_vision,
        workers=workers_of(workers),
        anyway=load_anyway,
        screen_reader=screen_reader,
    )
    command.run(options)


def list_chats(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="The most results to show.")] = 20,
    trash: Annotated[
        bool, typer.Option("--trash", help="List the conversations that were deleted in the last 30 days.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List stored conversations, latest first; search, show, export or delete them."""
    if context.invoked_subcommand is not None:
        if json:
            example = f"edgechat chats {context.invoked_subcommand} ID --json"
            raise typer.BadParameter(f"must follow the command: {example}", param_hint="--json")
        return
    from edgechat.cli.commands import chats as command

    command.list_chats(limit=limit, json=json, trash=trash)


def show(chat: Annotated[str, _Id], json: JsonOption = False, debug: DebugOption = False) -> None:
    """Print a conversation as Markdown."""
    from edgechat.cli.commands import chats as command

    command.show(as_text(chat), json=json)


def search(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="WORDS", help="All of them must occur; the last can be the beginning of a word."
        ),
    ],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most results to show.")] = 20,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Search all conversations, best matches first."""
    from edgechat.cli.commands import chats as command

    raise typer.Exit(command.search([as_text(word) for word in words], limit=limit, json=json))


def rename(
    chat: Annotated[str, _Id],
    title: Annotated[
        str, typer.Argument(metavar="TITLE", help='"" takes the first words of the conversation.')
    ],
    debug: DebugOption = False,
) -> None:
    """Change the title of a conversation."""
    from edgechat.cli.commands import chats as command

    command.rename(as_text(chat), as_text(title))


def pin(
    chat: Annotated[str, _Id],
    off: Annotated[bool, typer.Option("--off", help="Unpin it.")] = False,
    debug: DebugOption = False,
) -> None:
    """Keep a conversation at the top of the app's list."""
    from edgechat.cli.commands import chats as command

    command.pin(as_text(chat), off=off)


def export(
    chat: Annotated[str, _Id],
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="The file to write; by default, the conversation is printed."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Write JSON, which can be imported again, instead of Markdown.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a conversation to a file, as Markdown or as JSON."""
    from edgechat.cli.commands import chats as command

    command.export(as_text(chat), file, json=json, force=force)


def import_chat(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="An exported JSON file; - reads standard input.")
    ],
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Import an exported conversation, or a list of messages in the format of OpenAI's API."""
    from edgechat.cli.commands import chats as command

    command.import_chat(file, json=json)


def rm(
    chats: Annotated[list[str], _Id],
    now: Annotated[
        bool, typer.Option("--now", help="Delete permanently; otherwise, the trash keeps them for 30 days.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    debug: DebugOption = False,
) -> None:
    """Delete conversations, and their saved KV state."""
    from edgechat.cli.commands import chats as command

    command.rm([as_text(chat) for chat in chats], yes=yes, now=now)


def restore(chats: Annotated[list[str], _TrashedId], debug: DebugOption = False) -> None:
    """Restore conversations from the trash."""
    from edgechat.cli.commands import chats as command

    command.restore([as_text(chat) for chat in chats])
