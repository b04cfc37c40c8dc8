"""The options that all commands have."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from edgechat.cli import completing


class Debug:
    """Whether --debug was given, anywhere on the line."""

    on = False


def _debug(wanted: bool) -> None:
    Debug.on = Debug.on or wanted


DebugOption = Annotated[
    bool, typer.Option("--debug", callback=_debug, help="Show the traceback of an error.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, an MLX folder, or a name of `edgechat list`.",
        autocompletion=completing.local_models,
    ),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|none|ngram|MODEL",
        autocompletion=completing.drafters,
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
