"""The commands that serve models to other programs: their options."""

from __future__ import annotations

from typing import Literal

import click
from click.exceptions import Exit

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
    no_vision_option,
    offline_option,
    workers_option,
)
from edgechat.cli.parameters import Number, argument, command, option
from edgechat.cli.terminal_io import as_text
from edgechat.settings import EngineName, RuntimeQuant


@command(
    "serve",
    epilog="Clients of the OpenAI API connect to http://127.0.0.1:8484/v1 with the key that the first start "
    "generates. Ctrl+C lets answers in progress finish; a second Ctrl+C stops at once.",
)
@argument(
    "model",
    required=False,
    metavar="MODEL",
    help="The model that answers as 'default': a name shown by `edgechat list`, a GGUF file or an "
    "MLX folder. Default: the model that the app would open with. Requests can name any other "
    "model on this machine.",
    complete=completion.local_models,
)
@option(
    "--host",
    default="127.0.0.1",
    help="The address to listen on. If other machines can reach it, a key is always required.",
)
@option(
    "--port",
    type=Number(int, min=0, max=65535),
    help="The port to listen on; 0 chooses a free one.",
    show_default="8484",
)
@option(
    "--ollama",
    is_flag=True,
    help="Listen where programs for Ollama look: on port 11434, without a key unless --api-key is given.",
)
@option(
    "--api-key",
    metavar="KEY",
    help="The API key to require instead of the generated one. Prefer EDGECHAT_API_KEY: other users "
    "of the machine can see command lines.",
)
@option("--no-api-key", is_flag=True, help="Require no key: any program on this machine can use the server.")
@option(
    "--cors",
    multiple=True,
    metavar="ORIGIN",
    help="Accept requests from web pages of this origin, such as https://example.org; can be repeated.",
)
@option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Also accept requests for this host name, with any port, such as the name that containers "
    "or a proxy use; can be repeated.",
)
@option("--ctx", type=Number(int, min=1, max=MOST), help="Context length in tokens, shared by all requests.")
@draft_option
@lora_option
@backend_option
@engine_option
@quant_option
@no_vision_option
@workers_option
@anyway_option
@option(
    "--grace",
    type=Number(float, min=0, max=3600),
    default=6.0,
    help="Seconds that answers in progress have to finish when the server stops.",
)
@option(
    "--strict",
    is_flag=True,
    help="Refuse request fields that have no effect, such as those that clients copy from earlier answers.",
)
@option(
    "--store-responses",
    is_flag=True,
    help="Store the responses of /v1/responses in the database of conversations, so that clients can "
    "continue them by previous_response_id: for 30 days, at most 1,000 responses and 64 MiB.",
)
@option(
    "--docs",
    multiple=True,
    metavar="NAME",
    help="Let requests ask about these documents, by the field `docs`; all: about any; can be "
    "repeated. `edgechat docs list` lists them.",
    complete=completion.documents,
)
@option(
    "--fetch-images",
    is_flag=True,
    help="Fetch images that requests name by their address: from public addresses only, at most 32 MiB each.",
)
@option("--verbose", "-v", is_flag=True, help="Print a line for each request, without its contents.")
@offline_option
@debug_option
def serve(
    model: str | None,
    host: str,
    port: int | None,
    ollama: bool,
    api_key: str | None,
    no_api_key: bool,
    cors: tuple[str, ...],
    allow_host: tuple[str, ...],
    ctx: int | None,
    draft: str | None,
    lora: tuple[str, ...],
    backend: Literal["llama.cpp", "mlx"] | None,
    engine: EngineName | None,
    quant: RuntimeQuant | None,
    no_vision: bool,
    workers: tuple[str, ...] | None,
    load_anyway: bool,
    grace: float,
    strict: bool,
    store_responses: bool,
    docs: tuple[str, ...],
    fetch_images: bool,
    verbose: bool,
) -> None:
    """Serve models to editors, scripts and agents on this machine, as OpenAI, Anthropic and Ollama do."""
    from edgechat.cli.commands import serve as command
    from edgechat.planner.request import PlanRequest

    if model is None and (engine is not None or quant is not None):
        raise click.BadParameter("needs a MODEL", param_hint="--engine")
    options = command.ServeOptions(
        model=None if model is None else engine_model(engine, as_text(model), quant),
        request=PlanRequest(
            context=ctx,
            draft=draft,
            backend=backend,
            vision=not no_vision,
            adapters=adapters_of(lora),
            workers=workers,
            runtime_quant=quant,
            anyway=load_anyway,
        ),
        host=host,
        port=port if port is not None else 11434 if ollama else 8484,
        api_key=api_key,
        no_api_key=no_api_key or (ollama and api_key is None),
        cors=tuple(map(as_text, cors)),
        names=tuple(map(as_text, allow_host)),
        grace=grace,
        strict=strict,
        store_responses=store_responses,
        docs=tuple(map(as_text, docs)),
        fetch_images=fetch_images,
        verbose=verbose,
    )
    command.run(options)


@command("launch", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@argument(
    "agent",
    required=False,
    metavar="AGENT",
    help="The program to start: codex, claude, opencode, aider, crush, goose, pi or qwen. Options "
    "that edgechat does not know, and everything after --, are for the program.",
    complete=completion.agents,
)
@option(
    "--model",
    "-m",
    help="The model to use: a file, or a name shown by `edgechat list`. Default: the model that the "
    "app would open with.",
    complete=completion.local_models,
)
@option(
    "--ctx",
    type=Number(int, min=1, max=MOST),
    help="Context length in tokens. Default: at least 32,768, if that fits.",
)
@option(
    "only_print",
    "--print",
    is_flag=True,
    help="Print the settings instead, for AGENT or any program, and serve until Ctrl+C.",
)
@offline_option
@debug_option
@click.pass_context
def launch(
    context: click.Context, agent: str | None, model: str | None, ctx: int | None, only_print: bool
) -> None:
    """Start a coding agent on a model of this machine; its configuration files are not changed."""
    from edgechat.cli.commands.servers import launch as command

    options = command.LaunchOptions(
        agent=agent,
        arguments=tuple(context.args),
        model=None if model is None else as_text(model),
        context=ctx,
        only_print=only_print,
    )
    raise Exit(command.run(options))
