"""The command that asks a model: run."""

from __future__ import annotations

import math
from typing import Literal

import click

from edgechat.cli import completion
from edgechat.cli.declarations.engine_options import engine_model, engine_option, quant_option
from edgechat.cli.options import (
    MOST,
    adapters_of,
    anyway_option,
    backend_option,
    debug_option,
    draft_option,
    lora_option,
    model_argument,
    no_vision_option,
    offline_option,
    screen_reader_option,
    workers_option,
)
from edgechat.cli.parameters import Number, argument, command, option
from edgechat.cli.terminal_io import as_text
from edgechat.settings import EngineName, RuntimeQuant

_MOST_SEED = 2**64 - 1
"""The largest that the engine takes."""


@command(
    "run",
    epilog="In a terminal, without PROMPT, a conversation starts: /help lists its commands, Alt+Enter begins "
    "another line, Ctrl+C stops an answer, Ctrl+D ends the program.",
)
@model_argument
@argument(
    "prompt",
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
@option("--system", help="The system prompt of a new conversation.")
@option("last", "--continue", "-c", is_flag=True, help="Continue the last conversation of the command line.")
@option(
    "--chat",
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
@option("--stop", multiple=True, help="Stop before this text; can be repeated.")
@option("--think/--no-think", default=None, help="Switch a reasoning model's thinking on or off.")
@option(
    "--tools",
    metavar="NAME[,...]",
    help="Let the model call the tools of these servers, or built-in ones; `edgechat mcp list` lists them.",
)
@option(
    "--yes",
    metavar="TOOL[,...]",
    help="Call these tools without asking: SERVER/TOOL, or SERVER for all of its tools. Without a "
    "terminal, no others are called but those that can do no harm, such as the calculator.",
)
@option(
    "--docs",
    multiple=True,
    metavar="NAME",
    help="Answer from these documents, with citations; can be repeated. `edgechat docs list` lists them.",
    complete=completion.documents,
)
@option("--json", is_flag=True, help="Print one JSON object at the end.")
@option("--raw", is_flag=True, help="In a terminal too, print Markdown as the model writes it.")
@screen_reader_option
@draft_option
@lora_option
@backend_option
@engine_option
@quant_option
@no_vision_option
@workers_option
@anyway_option
@offline_option
@debug_option
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
    draft: str | None,
    lora: tuple[str, ...],
    backend: Literal["llama.cpp", "mlx"] | None,
    engine: EngineName | None,
    quant: RuntimeQuant | None,
    no_vision: bool,
    workers: tuple[str, ...] | None,
    load_anyway: bool,
) -> None:
    """Ask a model, and print the answer as it is generated."""
    from edgechat.chat.generation_options import CommandLineOptions
    from edgechat.cli.chat.conversation import ConversationChoice
    from edgechat.cli.commands import run as command
    from edgechat.settings import SamplingDefaults

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
        if not math.isfinite(value):  # a range does not refuse nan
            raise click.BadParameter(f"{value} is not a number", param_hint=f"--{name.replace('_', '-')}")
    options = command.RunOptions(
        model=engine_model(engine, model, quant),
        prompt=None if prompt is None else as_text(prompt),
        images=image,
        system=None if system is None else as_text(system),
        generation=CommandLineOptions(
            sampling=sampling,
            seed=seed,
            max_tokens=max_tokens,
            stop=tuple(map(as_text, stop)),
            think=think,
            overflow=overflow,
            adapters=adapters_of(lora),
            documents=tuple(map(as_text, docs)) or None,
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
        workers=workers,
        anyway=load_anyway,
        screen_reader=screen_reader,
    )
    command.run(options)
