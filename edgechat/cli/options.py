"""Options and arguments that several commands share."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from edgechat.base.network.offline import OFFLINE, OFFLINE_OPTION
from edgechat.cli import completion
from edgechat.cli.terminal_io import as_text
from edgechat.settings import EngineName, RuntimeQuant

MOST = 2**31 - 1
"""The most tokens or conversations; settings.toml has the same bound."""


def adapters_of(lora: list[str] | None) -> tuple[str, ...] | None:
    """Return the adapters of `--lora`; None if it was not given."""
    if not lora:
        return None
    return () if lora == ["off"] else tuple(map(as_text, lora))


class Debug:
    """Whether --debug was given, before or after the command."""

    on = False


def _debug(given: bool) -> None:
    Debug.on = Debug.on or given


def _offline(context: typer.Context, given: bool) -> None:
    """Keep this command and its child processes off the network."""
    if not given:
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
        help="Do not use the network; use only local models and stored information about the hub.",
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
        help="A GGUF file, an MLX folder, or a name shown by `edgechat list`.",
        autocompletion=completion.local_models,
    ),
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|none|mtp|ngram|MODEL",
        autocompletion=completion.drafters,
        help="Speculative decoding: what proposes tokens for the model to verify. auto: layers of the "
        "model itself (mtp), else the catalogue's draft model if it is on this machine; and n-grams of the "
        "conversation (ngram).",
        show_default=False,
    ),
]
BackendOption = Annotated[
    Literal["llama.cpp", "mlx"] | None,
    typer.Option(
        "--backend",
        help="The backend: llama.cpp (runs GGUF files), or mlx (runs MLX models, for Apple Silicon).",
        show_default=False,
    ),
]
EngineOption = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="Let another program run the model, started by edgechat: of owner/repo or a folder with "
        "safetensors, or by llama-server a GGUF file. MODEL can also be ENGINE:MODEL.",
        show_default=False,
    ),
]
QuantOption = Annotated[
    RuntimeQuant | None,
    typer.Option(
        "--quant",
        help="With --engine transformers: quantize the weights while they are loaded, by bitsandbytes.",
        show_default=False,
    ),
]


def engine_model(engine: EngineName | None, model: str, quant: RuntimeQuant | None) -> str:
    """Return the name of a model that another program is to run. Refuses --quant without one that can it."""
    name = model if engine is None else f"{engine}:{model}"
    if quant is not None and not name.startswith("transformers:"):
        raise typer.BadParameter("needs --engine transformers", param_hint="--quant")
    return name


def runs_elsewhere(model: str) -> bool:
    """Return whether edgechat does not load a model itself: ENGINE:MODEL, or NAME/MODEL of a remote."""
    from edgechat import settings
    from edgechat.models.remote.model import split_remote
    from edgechat.planner.placement.engines.programs import split_engine

    return split_engine(model)[0] is not None or split_remote(model, settings.load().remotes) is not None


NoVisionOption = Annotated[
    bool,
    typer.Option(
        "--no-vision",
        help="Do without the projector, the file with which the model can see or hear; saves its memory.",
        show_default=False,
    ),
]
LoraOption = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="FILE[:SCALE]",
        help="Apply a LoRA adapter: a GGUF file, a folder saved by PEFT, or a name shown by `edgechat list`; "
        "can be repeated. off: none, not even those of the settings.",
        autocompletion=completion.paths,
        show_default=False,
    ),
]
AnywayOption = Annotated[
    bool,
    typer.Option("--load-anyway", help="Load the model even if it does not seem to fit.", show_default=False),
]


def checked_workers(given: list[str] | None) -> list[str] | None:
    """Check the addresses of workers."""
    from edgechat.base.network import ssh

    for address in given or ():
        if ssh.ssh_host(address) is None:
            raise typer.BadParameter(f"{ssh.refusal(address)} {ssh.HINT}.")
    return given


def workers_of(given: list[str] | None) -> tuple[str, ...] | None:
    """Return the addresses that --with names; None without the option."""
    return tuple(given) if given else None


WorkersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="ssh://[USER@]HOST",
        callback=checked_workers,
        help="Let a machine that ssh reaches lend its memory, where that lets the model fit, or run "
        "faster; can be repeated. edgechat must be installed there.",
        show_default=False,
    ),
]
ScreenReaderOption = Annotated[
    bool,
    typer.Option(
        "--screen-reader",
        help="Chat line by line in plain sentences, without colours or animation; /help lists commands.",
        show_default=False,
    ),
]
