"""Options and arguments that several commands share."""

from __future__ import annotations

import os

import click

from edgechat.base.network.offline import OFFLINE, OFFLINE_OPTION
from edgechat.cli import completion
from edgechat.cli.parameters import argument, option
from edgechat.cli.terminal_io import as_text

MOST = 2**31 - 1
"""The most tokens or conversations; settings.toml has the same bound."""


def adapters_of(lora: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the adapters of `--lora`; None if it was not given."""
    if not lora:
        return None
    return () if lora == ("off",) else tuple(map(as_text, lora))


class Debug:
    """Whether --debug was given, before or after the command."""

    on = False


def _debug(_context: click.Context, _param: click.Parameter, given: bool) -> None:
    Debug.on = Debug.on or given


def _offline(context: click.Context, _param: click.Parameter, given: bool) -> None:
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


offline_option = option(
    "--offline",
    is_flag=True,
    expose_value=False,
    callback=_offline,
    help="Do not use the network; use only local models and stored information about the hub.",
)
debug_option = option(
    "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show the traceback of an error."
)
json_option = option("--json", is_flag=True, help="Print JSON.")
model_argument = argument(
    "model",
    metavar="MODEL",
    help="A GGUF file, an MLX folder, or a name shown by `edgechat list`.",
    complete=completion.local_models,
)
draft_option = option(
    "--draft",
    metavar="auto|none|mtp|ngram|MODEL",
    complete=completion.drafters,
    help="Speculative decoding: what proposes tokens for the model to verify. auto: layers of the "
    "model itself (mtp), else the catalogue's draft model if it is on this machine; and n-grams of the "
    "conversation (ngram).",
)
backend_option = option(
    "--backend",
    type=click.Choice(["llama.cpp", "mlx"]),
    help="The backend: llama.cpp (runs GGUF files), or mlx (runs MLX models, for Apple Silicon).",
)
no_vision_option = option(
    "--no-vision",
    is_flag=True,
    help="Do without the projector, the file with which the model can see or hear; saves its memory.",
)
lora_option = option(
    "--lora",
    multiple=True,
    metavar="FILE[:SCALE]",
    help="Apply a LoRA adapter: a GGUF file, a folder saved by PEFT, or a name shown by `edgechat list`; "
    "can be repeated. off: none, not even those of the settings.",
    complete=completion.paths,
)
anyway_option = option("--load-anyway", is_flag=True, help="Load the model even if it does not seem to fit.")


def checked_workers(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Check the addresses of workers; None: there is no such option."""
    from edgechat.base.network import lenders

    for address in given:
        if lenders.ssh_host(address) is None:
            raise click.BadParameter(f"{lenders.ssh_refusal(address)} {lenders.SSH_HINT}.")
    return given or None


workers_option = option(
    "workers",
    "--with",
    multiple=True,
    metavar="ssh://[USER@]HOST",
    callback=checked_workers,
    help="Let a machine that ssh reaches lend its memory, where that lets the model fit, or run "
    "faster; can be repeated. edgechat must be installed there.",
)
screen_reader_option = option(
    "--screen-reader",
    is_flag=True,
    help="Chat line by line in plain sentences, without colours or animation; /help lists commands.",
)


def runs_elsewhere(model: str) -> bool:
    """Return whether edgechat does not load a model itself: ENGINE:MODEL, or NAME/MODEL of a remote."""
    from edgechat import settings
    from edgechat.models.remote.model import split_remote
    from edgechat.planner.placement.engines.programs import split_engine

    return split_engine(model)[0] is not None or split_remote(model, settings.load().remotes) is not None
