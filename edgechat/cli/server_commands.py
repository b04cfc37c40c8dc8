"""The serve command: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import MOST, AnywayOption, BackendOption, DebugOption, DraftOption, OfflineOption
from edgechat.cli.terminal_io import as_text


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    epilog = (
        "Clients of the OpenAI API connect to http://127.0.0.1:8484/v1 with the key that the first start "
        "generates. Ctrl+C lets answers in progress finish; a second Ctrl+C stops at once."
    )
    app.command("serve", epilog=epilog)(serve)


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
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 chooses a free one.")
    ] = 8484,
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
    backend: BackendOption = None,
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
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a line for each request, without its contents.")
    ] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve models to editors, scripts and agents on this machine, over the OpenAI API."""
    from edgechat.cli.commands import serve as command
    from edgechat.planner.request import PlanRequest

    options = command.ServeOptions(
        model=None if model is None else as_text(model),
        request=PlanRequest(context=ctx, draft=draft, backend=backend, anyway=load_anyway),
        host=host,
        port=port,
        api_key=api_key,
        no_api_key=no_api_key,
        cors=tuple(map(as_text, cors or ())),
        names=tuple(map(as_text, allow_host or ())),
        grace=grace,
        strict=strict,
        verbose=verbose,
    )
    command.run(options)
