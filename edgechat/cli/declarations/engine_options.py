"""Options of commands that can let another program run a model. Their values are those of the settings."""

from __future__ import annotations

from typing import get_args

import click

from edgechat.cli.parameters import option
from edgechat.settings import EngineName, RuntimeQuant

engine_option = option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    help="Let another program run the model, started by edgechat: of owner/repo or a folder with "
    "safetensors, or by llama-server a GGUF file. MODEL can also be ENGINE:MODEL.",
)
quant_option = option(
    "--quant",
    type=click.Choice(get_args(RuntimeQuant)),
    help="With --engine transformers: quantize the weights while they are loaded, by bitsandbytes.",
)


def engine_model(engine: EngineName | None, model: str, quant: RuntimeQuant | None) -> str:
    """Return the model's name with its engine. Raises BadParameter for --quant with any but transformers."""
    name = model if engine is None else f"{engine}:{model}"
    if quant is not None and not name.startswith("transformers:"):
        raise click.BadParameter("needs --engine transformers", param_hint="--quant")
    return name
