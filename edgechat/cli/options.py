"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from edgechat.cli import completion
from edgechat.cli.declaring import TEXT, argument, option

if TYPE_CHECKING:
    from edgechat.planner.request import PlanRequest
    from edgechat.settings import EngineName, RuntimeQuant

MOST = 2**31 - 1
"""Upper limit for numbers of tokens or conversations, the same as in settings.toml."""


def _adapters(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the adapters given, or None to use the ones in the settings."""
    return () if given == ("off",) else given or None


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
    type=TEXT,
    callback=_adapters,
    complete=completion.paths,
)
anyway_option = option("--load-anyway", is_flag=True, help="Load the model even if it does not seem to fit.")


def checked_workers(
    _context: click.Context, _param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Check the addresses of workers and return them, or None if none were given."""
    if not given:
        return None
    from edgechat.base.network import lenders

    for address in given:
        if lenders.ssh_host(address) is None:
            raise click.BadParameter(f"{lenders.ssh_refusal(address)} {lenders.SSH_HINT}.")
    return given


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


class LoadOptions(NamedTuple):
    """Options for loading a model, shared by several commands."""

    draft: str | None
    lora: tuple[str, ...] | None
    backend: Literal["llama.cpp", "mlx"] | None
    no_vision: bool
    workers: tuple[str, ...] | None
    load_anyway: bool = False
    engine: EngineName | None = None
    quant: RuntimeQuant | None = None

    def request(self, **others: Any) -> PlanRequest:
        """Return a planning request made from these options. others: additional fields to set in it."""
        from edgechat.planner.request import PlanRequest

        return PlanRequest(
            draft=self.draft,
            adapters=self.lora,
            backend=self.backend,
            vision=not self.no_vision,
            workers=self.workers,
            anyway=self.load_anyway,
            runtime_quant=self.quant,
            **others,
        )

    def name(self, model: str) -> str:
        """Return MODEL or ENGINE:MODEL. Raises BadParameter if --quant is given without transformers."""
        name = model if self.engine is None else f"{self.engine}:{model}"
        if self.quant is not None and not name.startswith("transformers:"):
            raise click.BadParameter("needs --engine transformers", param_hint="--quant")
        return name

    def require_model(self, given: object) -> None:
        """Raise BadParameter if --engine or --quant is used without a MODEL."""
        if not given and (self.engine is not None or self.quant is not None):
            raise click.BadParameter("needs a MODEL", param_hint="--engine")


def load_options(*, engine: bool = True, anyway: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that adds the options in `LoadOptions`, passed to the command as `load`.

    engine: whether to include --engine and --quant. anyway: whether to include --load-anyway.
    """
    options = [draft_option, lora_option, backend_option]
    if engine:
        from edgechat.cli.values import engine_option, quant_option  # takes 10 ms, as it imports the settings

        options += [engine_option, quant_option]
    options += [no_vision_option, workers_option]
    options += [anyway_option] if anyway else []

    def declare(command: Callable[..., Any]) -> Any:
        @functools.wraps(command)
        def run(*args: Any, **values: Any) -> Any:
            given = {name: values.pop(name) for name in LoadOptions._fields if name in values}
            return command(*args, **values, load=LoadOptions(**given))

        for one in reversed(options):
            run = one(run)
        return run

    return declare
