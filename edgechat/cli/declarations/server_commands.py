"""The commands that serve models to other programs: their options."""

from __future__ import annotations

from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import (
    MOST,
    AnywayOption,
    BackendOption,
    DebugOption,
    DraftOption,
    EngineOption,
    LoraOption,
    NoVisionOption,
    OfflineOption,
    QuantOption,
    WorkersOption,
    adapters_of,
    engine_model,
    workers_of,
)
from edgechat.cli.terminal_io import as_text


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    epilog = (
        "Clients of the OpenAI API connect to http://127.0.0.1:8484/v1 with the key that the first start "
        "generates. Ctrl+C lets answers in progress finish; a second Ctrl+C stops at once."
    )
    app.command("serve", epilog=epilog)(serve)
    unlimited = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("launch", context_settings=unlimited)(launch)


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="The model that answers as 'default': a name shown by `edgechat list`, a GGUF file or an "
            "MLX folder. Default: the model that the app would open with. Requests can name any other "
            "model on this machine.",
            autocompletion=completion.local_models,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. If other machines can reach it, a key is always required."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The port to listen on; 0 chooses a free one.", show_default="8484"
        ),
    ] = None,
    ollama: Annotated[
        bool,
        typer.Option(
            "--ollama",
            help="Listen where programs for Ollama look: on port 11434, without a key unless --api-key is "
            "given.",
        ),
    ] = False,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            help="The API key to require instead of the generated one. Prefer EDGECHAT_API_KEY: other users "
            "of the machine can see command lines.",
        ),
    ] = None,
    no_api_key: Annotated[
        bool,
        typer.Option("--no-api-key", help="Require no key: any program on this machine can use the server."),
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Accept requests from web pages of this origin, such as https://example.org; can be "
            "repeated.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Also accept requests for this host name, with any port, such as the name that containers "
            "or a proxy use; can be repeated.",
        ),
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Context length in tokens, shared by all requests."),
    ] = None,
    draft: DraftOption = None,
    lora: LoraOption = None,
    backend: BackendOption = None,
    engine: EngineOption = None,
    quant: QuantOption = None,
    no_vision: NoVisionOption = False,
    workers: WorkersOption = None,
    load_anyway: AnywayOption = False,
    grace: Annotated[
        float,
        typer.Option(
            min=0, max=3600, help="Seconds that answers in progress have to finish when the server stops."
        ),
    ] = 6.0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse request fields that have no effect, such as those that clients copy from earlier "
            "answers.",
        ),
    ] = False,
    store_responses: Annotated[
        bool,
        typer.Option(
            "--store-responses",
            help="Store the responses of /v1/responses in the database of conversations, so that clients can "
            "continue them by previous_response_id: for 30 days, at most 1,000 responses and 64 MiB.",
        ),
    ] = False,
    docs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Let requests ask about these documents, by the field `docs`; all: about any; can be "
            "repeated. `edgechat docs list` lists them.",
            autocompletion=completion.documents,
        ),
    ] = None,
    fetch_images: Annotated[
        bool,
        typer.Option(
            "--fetch-images",
            help="Fetch images that requests name by their address: from public addresses only, at most "
            "32 MiB each.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a line for each request, without its contents.")
    ] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve models to editors, scripts and agents on this machine, as OpenAI, Anthropic and Ollama do."""
    from edgechat.cli.commands import serve as command
    from edgechat.planner.request import PlanRequest

    if model is None and (engine is not None or quant is not None):
        raise typer.BadParameter("needs a MODEL", param_hint="--engine")
    options = command.ServeOptions(
        model=None if model is None else engine_model(engine, as_text(model), quant),
        request=PlanRequest(
            context=ctx,
            draft=draft,
            backend=backend,
            vision=not no_vision,
            adapters=adapters_of(lora),
            workers=workers_of(workers),
            runtime_quant=quant,
            anyway=load_anyway,
        ),
        host=host,
        port=port if port is not None else 11434 if ollama else 8484,
        api_key=api_key,
        no_api_key=no_api_key or (ollama and api_key is None),
        cors=tuple(map(as_text, cors or ())),
        names=tuple(map(as_text, allow_host or ())),
        grace=grace,
        strict=strict,
        store_responses=store_responses,
        docs=tuple(map(as_text, docs or ())),
        fetch_images=fetch_images,
        verbose=verbose,
    )
    command.run(options)


def launch(
    context: typer.Context,
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="AGENT",
            help="The program to start: codex, claude, opencode, aider, crush, goose, pi or qwen. Options "
            "that edgechat does not know, and everything after --, are for the program.",
            autocompletion=completion.agents,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model to use: a file, or a name shown by `edgechat list`. Default: the model that the "
            "app would open with.",
            autocompletion=completion.local_models,
        ),
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Context length in tokens. Default: at least 32,768, if that fits."
        ),
    ] = None,
    only_print: Annotated[
        bool,
        typer.Option(
            "--print", help="Print the settings instead, for AGENT or any program, and serve until Ctrl+C."
        ),
    ] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
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
    raise typer.Exit(command.run(options))
