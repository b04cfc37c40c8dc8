"""The options that all commands have."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from edgechat.cli import completion
from edgechat.offline import OFFLINE, OFFLINE_OPTION

MOST = 2**31 - 1
"""Of what is counted: tokens, conversations. settings.toml has the same bound."""


class Debug:
    """Whether --debug was given, anywhere on the line."""

    on = False


def _debug(wanted: bool) -> None:
    Debug.on = Debug.on or wanted


def _offline(context: typer.Context, wanted: bool) -> None:
    """Keep this command, and all that it starts, off the network until it has ended."""
    if not wanted:
        return
    before = os.environ.get(OFFLINE)
    os.environ[OFFLINE] = OFFLINE_OPTION

    @context.call_on_close
    def _restore() -> None:
        if before is None:
            os.environ.pop(OFFLINE, None)
        else:
            os.environ[OFFLINE] = before


OfflineOption = Annotated[
    bool,
    typer.Option(
        "--offline",
        callback=_offline,
        help="Keep off the network: only what is here, and what was learnt of the hub before.",
        show_default=False,
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", callback=_debug, help="Show the traceback of an error.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, an MLX folder, or a name of `edgechat list`.",
        autocompletion=completion.local_models,
    ),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|none|ngram|MODEL",
        autocompletion=completion.drafters,
        help="Who guesses the next words, so that the model has only to check them. auto: the catalogue's "
        "draft model where it is here, and what was said before (ngram).",
        show_default=False,
    ),
]
BackendOption = Annotated[
    Literal["llama.cpp", "mlx"] | None,
    typer.Option(
        "--backend",
        help="What computes the model: llama.cpp (GGUF files), or mlx (MLX models, for Apple Silicon).",
        show_default=False,
    ),
]
AnywayOption = Annotated[
    bool,
    typer.Option(
        "--load-anyway", help="Load the model although it does not seem to fit.", show_default=False
    ),
]
ScreenReaderOption = Annotated[
    bool,
    typer.Option(
        "--screen-reader",
        help="Talk line by line in plain sentences, without colours and moving lines; /help lists commands.",
        show_default=False,
    ),
]
