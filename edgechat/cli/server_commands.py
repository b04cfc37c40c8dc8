"""The command that serves other programs: its words on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from edgechat.cli import completion
from edgechat.cli.options import MOST, AnywayOption, BackendOption, DebugOption, DraftOption, OfflineOption
from edgechat.cli.terminal_io import as_text


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    held = (
        "Programs that speak OpenAI's protocol find it at http://127.0.0.1:8484/v1, with the key that the "
        "first start makes. Ctrl+C lets what is being answered end; a second one ends at once."
    )
    app.command("serve", epilog=held)(serve)


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="What answers as 'default': a name of `edgechat list`, a GGUF file or an MLX folder. None: "
            "as the app chooses. Requests may name any other model that is here.",
            autocompletion=completion.local_models,
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. One that other machines can reach always asks for a key."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8484,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            help="The key to ask for, in place of edgechat's own. EDGECHAT_API_KEY is the better way: other "
            "users of the machine see command lines.",
        ),
    ] = None,
    no_api_key: Annotated[
        bool, typer.Option("--no-api-key", help="Ask for no key: any program on this machine may use it.")
    ] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages of this origin use it: https://example.org; may be given again.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Answer to this name too, with any port: as containers or a proxy call this machine; may be "
            "given again.",
        ),
    ] = None,
    ctx: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Tokens that the context holds, of all requests together."),
    ] = None,
    draft: DraftOption = None,
    backend: BackendOption = None,
    load_anyway: AnywayOption = False,
    grace: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds that answers may still take when it is stopped.")
    ] = 6.0,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse fields of requests that would have no effect, as those that clients send back with "
            "answers.",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print a line for each request; nothing of what it says.")
    ] = False,
    offline: OfflineOption = False,
    debug: DebugOption = False,
) -> None:
    """Serve models to editors, scripts and agents on this machine, by OpenAI's protocol."""
    from edgechat.cli.commands import serve as command

    options = command.ServeOptions(
        model=None if model is None else as_text(model),
        host=host,
        port=port,
        api_key=api_key,
        no_api_key=no_api_key,
        cors=tuple(map(as_text, cors or ())),
        names=tuple(map(as_text, allow_host or ())),
        context=ctx,
        draft=draft,
        backend=backend,
        anyway=load_anyway,
        grace=grace,
        strict=strict,
        verbose=verbose,
    )
    raise typer.Exit(command.run(options))
