"""`edgechat run`: a single question, or a conversation line by line.

Answers go to stdout, and everything else to stderr. The plain mode for screen readers (`edgechat
--screen-reader`) works in the same way, but prints whole sentences.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from edgechat.base.errors import EdgechatError, ModelNotFound, StoreError
from edgechat.base.text import is_binary
from edgechat.cli import completion
from edgechat.cli.declaring import TEXT, Number, argument, command, option
from edgechat.cli.options import MOST, LoadOptions, load_options, model_argument, screen_reader_option
from edgechat.cli.terminal_io import ending_on_signals, note, read_piped
from edgechat.settings import SamplingDefaults, Settings

if TYPE_CHECKING:
    from edgechat.chat.session import ChatSession
    from edgechat.cli.chat.conversation import Background, RunOptions

_STDIN = "-"
PIPED_LIMIT = 16 * 2**20
"""Maximum size of piped input in bytes, more than any context can hold."""

_MOST_SEED = 2**64 - 1
"""The largest seed that engines accept."""


@command(
    "run",
    epilog="In a terminal, without PROMPT, a conversation starts: /help lists its commands, Alt+Enter begins "
    "another line, Ctrl+C stops an answer, Ctrl+D ends the program.",
    offline=True,
)
@model_argument
@argument(
    "prompt",
    type=TEXT,
    required=False,
    metavar="PROMPT",
    help="The question. Text piped in is appended to it; - uses only the piped text.",
)
@option(
    "--image",
    multiple=True,
    metavar="FILE",
    help="Send an image with the question; can be repeated. - takes it from standard input.",
)
@option("--system", type=TEXT, help="The system prompt of a new conversation.")
@option("last", "--continue", "-c", is_flag=True, help="Continue the last conversation of the command line.")
@option(
    "--chat",
    type=TEXT,
    metavar="ID",
    help="Continue the conversation with this id; `edgechat chats` lists them.",
    complete=completion.chats,
)
@option("--no-store", is_flag=True, help="Keep nothing of the conversation on disk.")
@option(
    "--overflow",
    type=click.Choice(["window", "error"]),
    help="When the context is full, window leaves out the oldest turns; error refuses the question.",
)
@option(
    "--temperature",
    type=Number(float, min=0, max=5),
    help="0 always takes the most likely token; higher values vary more.",
)
@option(
    "--top-k",
    type=Number(int, min=0, max=MOST),
    help="Sample from this many of the most likely tokens; 0: from all.",
)
@option(
    "--top-p",
    type=Number(float, min=0, max=1),
    help="Sample from the most likely tokens that have this probability together.",
)
@option(
    "--min-p",
    type=Number(float, min=0, max=1),
    help="Drop tokens less likely than this share of the most likely one.",
)
@option("--repetition-penalty", type=Number(float, min=0.01, max=5), help="1: none.")
@option("--presence-penalty", type=Number(float, min=-2, max=2), help="0: none.")
@option("--frequency-penalty", type=Number(float, min=-2, max=2), help="0: none.")
@option("--seed", type=Number(int, min=0, max=_MOST_SEED), help="The same seed reproduces the same text.")
@option(
    "--max-tokens",
    type=Number(int, min=1, max=MOST),
    help="Stop after this many tokens; after calls of tools, after as many again.",
)
@option("--ctx", type=Number(int, min=1, max=MOST), help="Context length, in tokens.")
@option("--stop", type=TEXT, multiple=True, help="Stop before this text; can be repeated.")
@option("--think/--no-think", default=None, help="Switch a reasoning model's thinking on or off.")
@option(
    "--tools",
    type=TEXT,
    metavar="NAME[,...]",
    help="Let the model call the tools of these servers, or built-in ones; `edgechat mcp list` lists them.",
)
@option(
    "--yes",
    type=TEXT,
    metavar="TOOL[,...]",
    help="Call these tools without asking: SERVER/TOOL, or SERVER for all of its tools. Without a "
    "terminal, no others are called but those that can do no harm, such as the calculator.",
)
@option(
    "--docs",
    type=TEXT,
    multiple=True,
    metavar="NAME",
    help="Answer from these documents, with citations; can be repeated. `edgechat docs list` lists them.",
    complete=completion.documents,
)
@option("--json", is_flag=True, help="Print one JSON object at the end.")
@option("--raw", is_flag=True, help="In a terminal too, print Markdown as the model writes it.")
@screen_reader_option
@load_options()
def run(
    model: str,
    prompt: str | None,
    image: tuple[str, ...],
    system: str | None,
    last: bool,
    chat: str | None,
    no_store: bool,
    overflow: Literal["window", "error"] | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
    presence_penalty: float | None,
    frequency_penalty: float | None,
    seed: int | None,
    max_tokens: int | None,
    ctx: int | None,
    stop: tuple[str, ...],
    think: bool | None,
    tools: str | None,
    yes: str | None,
    docs: tuple[str, ...],
    json: bool,
    raw: bool,
    screen_reader: bool,
    load: LoadOptions,
) -> None:
    """Ask a model, and print the answer as it is generated."""
    from edgechat.chat.generation_options import CommandLineOptions
    from edgechat.cli.chat.conversation import ConversationChoice, RunOptions

    if last and chat is not None:
        raise click.BadParameter("cannot be used together with --chat", param_hint="--continue")
    if no_store and (last or chat is not None):
        raise click.BadParameter(
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
        if not math.isfinite(value):  # range checks do not catch NaN
            raise click.BadParameter(f"{value} is not a number", param_hint=f"--{name.replace('_', '-')}")
    options = RunOptions(
        model=load.name(model),
        prompt=prompt,
        images=image,
        system=system,
        generation=CommandLineOptions(
            sampling=sampling,
            seed=seed,
            max_tokens=max_tokens,
            stop=stop,
            think=think,
            overflow=overflow,
            adapters=load.lora,
            documents=docs or None,
        ),
        request=load.request(context=ctx),
        choice=ConversationChoice(last=last, chat=chat, keep=not no_store),
        tools=tools,
        yes=tuple(name.strip() for name in (yes or "").split(",") if name.strip()),
        json=json,
        raw=raw,
        screen_reader=screen_reader,
    )
    run_with(options)


def run_with(options: RunOptions) -> None:
    """Read piped input, if any, then answer the prompt or hold a conversation. Raises EdgechatError."""
    if _STDIN in options.images:
        options = _with_piped_image(options)
        prompt = options.prompt
    else:
        prompt = None if options.interactive else _whole_prompt(options.prompt)
    if prompt is None and options.json:
        raise EdgechatError(
            "--json requires a prompt.", hint='For example: edgechat run MODEL "PROMPT" --json'
        )
    if prompt is not None and not prompt.strip():
        example = f'edgechat run MODEL "PROMPT"{options.choice.as_option}'
        raise EdgechatError("The prompt is empty.", hint=f"For example: {example}")
    options = replace(options, prompt=prompt)
    with ending_on_signals():
        _run(options)


def _run(options: RunOptions) -> None:
    from edgechat.chat.reply.chat_tools import choice
    from edgechat.cli.chat.conversation import Background, hinting_at_no_store

    background = Background()
    session = _session(options)
    try:
        settings = background.run(session.read_settings())
        if options.tools is not None:
            tools = choice(options.tools, background.run(session.tools.known()))
            session.options = msgspec.structs.replace(session.options, tools=tools)
        with hinting_at_no_store(options.choice):
            background.run(session.store())
        _run_session(options, settings, session, background)
    finally:
        background.run(session.close())


def _session(options: RunOptions) -> ChatSession:
    from edgechat.chat.session import ChatSession, SessionServices

    session = ChatSession(
        SessionServices.real(options.request),
        options.model,
        front="run",
        options=options.generation,
        keep=options.choice.keep,
        needs_store=not options.choice.is_new,
        prewarm=options.prompt is None,  # a single prompt is not followed by others
    )
    session.on_note = note
    return session


def _run_session(
    options: RunOptions, settings: Settings, session: ChatSession, background: Background
) -> None:
    from edgechat.cli.chat.conversation import chosen_conversation
    from edgechat.cli.chat.loop import ChatLoop
    from edgechat.cli.chat.slash_commands import SlashCommands

    choice = options.choice
    system = options.new_system(settings) if choice.is_new else options.system
    conversation = background.run(chosen_conversation(session, choice, system))
    try:
        background.run(session.engine())
    except ModelNotFound as error:
        if options.model is None or choice.is_new or options.prompt is not None:
            raise
        # With --continue, users tend to forget that the model comes before the prompt.
        command = shlex.join(["edgechat", "run", conversation.chat.model, options.model])
        raise ModelNotFound(error.message, hint=f"Did you mean: {command}{choice.as_option}") from error
    spoken = options.screen_reader or settings.screen_reader
    loop = ChatLoop(session, conversation, options, background, spoken=spoken)
    loop.main(options.prompt, SlashCommands(loop).run)
    if options.interactive:  # as the app does
        with contextlib.suppress(StoreError):
            background.run(session.remember_model())


def _with_piped_image(options: RunOptions) -> RunOptions:
    """Return the options with the image "-" replaced by the bytes piped in."""
    from edgechat.base.process.file_decoder import MAX_FILE_BYTES

    example = 'For example: edgechat run MODEL "What is this?" --image - < photo.png'
    if options.images.count(_STDIN) > 1:
        raise EdgechatError("Only one image can be piped in.", hint=example)
    if options.prompt in (None, _STDIN):
        raise EdgechatError("An image that is piped in requires a prompt.", hint=example)
    if sys.stdin is None or sys.stdin.isatty():
        raise EdgechatError("No image is piped in.", hint="To send a file: --image FILE")
    piped = read_piped(MAX_FILE_BYTES + 1)
    return replace(options, images=[piped if image == _STDIN else image for image in options.images])


def _whole_prompt(prompt: str | None) -> str | None:
    """Return the prompt followed by any piped text, or None if the user will type questions."""
    if prompt == _STDIN:
        prompt = None
    if sys.stdin is None or sys.stdin.isatty():
        return prompt
    piped = read_piped(PIPED_LIMIT + 1)
    if len(piped) > PIPED_LIMIT:
        raise EdgechatError(
            f"More than {PIPED_LIMIT // 2**20} MiB were piped in, which is more than any context holds.",
            hint="Pipe in only the relevant part.",
        )
    if is_binary(piped):
        raise EdgechatError(
            "The piped input is not text.",
            hint='To send an image: edgechat run MODEL "What is this?" --image - < photo.png',
        )
    text = piped.decode("utf-8", "replace")
    return "\n\n".join(part for part in (prompt, text) if part) if prompt or text else prompt or ""
