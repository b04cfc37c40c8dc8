"""Types of option values: engines, qualities, and amounts such as '8GiB', '8g', '6144 MiB' or '50GB/s'."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast, get_args

import click

from edgechat import settings
from edgechat.cli.declaring import option
from edgechat.settings import EngineName, RuntimeQuant

if TYPE_CHECKING:
    from edgechat.models.quality import QualityClass
    from edgechat.native.params import CacheType

_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOST = 1 << 50


engine_option = option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    help="Let another program, started by edgechat, run the model: owner/repo or a folder with "
    "safetensors; with llama-server, a GGUF file. MODEL can also be ENGINE:MODEL.",
)
quant_option = option(
    "--quant",
    type=click.Choice(get_args(RuntimeQuant)),
    help="With --engine transformers: quantize the weights while they are loaded, by bitsandbytes.",
)


def runs_elsewhere(model: str) -> bool:
    """Return whether a model runs in another program (ENGINE:MODEL) or on a remote (NAME/MODEL)."""
    from edgechat.models.remote.model import split_remote
    from edgechat.planner.placement.programs import split_engine

    return split_engine(model)[0] is not None or split_remote(model, settings.load().remotes) is not None


def amount(option: str, text: str | None) -> int | None:
    """Parse an amount of memory, in bytes. Both 8G and 8GB mean 8 GiB, as with memory modules.

    Raises BadParameter.
    """
    if text is None:
        return None
    return _number(option, text, 1024, "memory; write 8GiB")


def rate(text: str | None) -> float | None:
    """Parse a rate, in bytes per second. 1 GB is 10^9 bytes, as in data sheets.

    Raises BadParameter.
    """
    if text is None:
        return None
    base = 1024 if "i" in text.lower() else 1000
    size = re.sub(r"/s\s*$", "", text)
    number = _number("--bandwidth", size, base, "bytes per second; for example: 50GB/s")
    if number < 10**6:
        raise click.BadParameter(
            f"{text!r} is too slow for memory; for example: 50GB/s", param_hint="--bandwidth"
        )
    return float(number)


def quality_class(text: str | None) -> QualityClass | None:
    """Return the quality class with this name. Raises BadParameter if there is none."""
    if text is None:
        return None
    from edgechat.models.quality import QualityClass

    classes = {quality.label: quality for quality in QualityClass}
    quality = classes.get(text.strip().lower().replace("_", "-").replace(" ", "-"))
    if quality is None:
        raise click.BadParameter(f"{text!r} is not one of {', '.join(classes)}", param_hint="--quality")
    return quality


def cache_types(text: str | None) -> tuple[CacheType, ...]:
    """Parse a comma-separated list of KV cache types. Raises BadParameter."""
    from edgechat.native.params import CacheType

    names = [name.strip().lower() for name in (text or "").split(",") if name.strip()]
    for name in names:
        if name not in get_args(CacheType):
            known = ", ".join(get_args(CacheType))
            raise click.BadParameter(f"{name!r} is not one of {known}", param_hint="--cache-type")
    return tuple(cast("list[CacheType]", names))


def _number(option: str, text: str, base: int, expected: str) -> int:
    match = _AMOUNT.fullmatch(text)
    number = int(float(match[1]) * base ** _POWERS[match[2].lower()]) if match else -1
    if match and match[2] == "" and number:
        example = expected.split()[-1]
        raise click.BadParameter(f"{text!r} has no unit; for example: {example}", param_hint=option)
    if not 0 <= number <= _MOST:
        raise click.BadParameter(f"{text!r} is not an amount of {expected}", param_hint=option)
    return number
