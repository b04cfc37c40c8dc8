"""Plan request: the choices that the user makes instead of the planner."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from edgechat.base.errors import OptionWithoutEffect
from edgechat.models.formats.header import Format
from edgechat.models.quality import QualityClass
from edgechat.native.params import CacheType
from edgechat.settings import AttentionWish, Backend, RuntimeQuant, Settings

BACKENDS: dict[Format, Backend] = {"gguf": "llama.cpp", "mlx": "mlx"}
FORMATS: dict[Backend, Format] = {backend: format for format, backend in BACKENDS.items()}
ENOUGH = 8192
"""Number of tokens of context that a conversation needs."""
READABLE = 5.0
"""Speed at which people read, in tokens per second: about 230 words per minute."""


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices for a plan. Those that are None are left to the planner."""

    context: int | None = None
    """Length of the context in tokens."""
    cache_type: CacheType | None = None
    threads: int | None = None
    min_tps: float | None = None
    """Minimum speed in tokens per second. Slower quantizations and models are not chosen."""
    clients: int | None = None
    """Number of clients that may send requests at the same time."""
    quality: QualityClass | None = None
    """Minimum quality of the quantization. None means good, or lower if nothing else fits."""
    draft: str | None = None
    """The drafter: 'auto' (the same as None), 'none', 'ngram', 'mtp', or the name or path of a model."""
    attention: AttentionWish | None = None
    """Kind of attention for GGUF chat models; None to follow settings.toml."""
    anyway: bool = False
    """Load even if it does not seem to fit."""
    backend: Backend | None = None
    """The only backend to consider."""
    vision: bool = True
    """Whether to also download and load the model's projector, so that the model can see or hear."""
    adapters: tuple[str, ...] | None = None
    """LoRA adapters, as FILE or NAME:SCALE; None for the usual ones."""
    usual_adapters: tuple[str, ...] = ()
    """Adapters to use with every model that they fit; if empty, those in settings.toml."""
    workers: tuple[str, ...] | None = None
    """Addresses of machines that lend their memory (`ssh://host`)."""
    runtime_quant: RuntimeQuant | None = None
    """How weights are quantized during loading, if Transformers runs the model."""
    prefers: Backend | None = None
    """Preferred backend if there is a choice, from settings.toml."""
    is_strict: bool = True
    """Whether options that have no effect raise an error. Otherwise, the plan only notes them."""


DEFAULT_REQUEST = PlanRequest()
_OPTIONS: Mapping[str, str] = {
    "context": "--ctx",
    "min_tps": "--min-tps",
    "clients": "--clients",
    "quality": "--quality",
    "draft": "--draft",
    "backend": "--backend",
    "vision": "--no-vision",
    "adapters": "--lora",
    "workers": "--with",
    "anyway": "--load-anyway",
}
"""Maps fields to their command line options."""


def with_settings(request: PlanRequest, config: Settings) -> PlanRequest:
    """Return the request, taking missing values from settings.toml."""
    return msgspec.structs.replace(
        request,
        context=config.context if request.context is None else request.context,
        threads=config.threads if request.threads is None else request.threads,
        attention=config.attention if request.attention is None else request.attention,
        draft=config.draft if request.draft is None else request.draft,
        workers=config.workers if request.workers is None else request.workers,
        prefers=config.backend if request.prefers is None else request.prefers,
        usual_adapters=() if request.adapters is not None else request.usual_adapters or config.adapters,
    )


def without_effect(
    request: PlanRequest, config: Settings, effective: Collection[str], name: str, runner: str
) -> tuple[str, ...]:
    """Return notes about options that have no effect on a model that another program runs.

    effective: fields that do have an effect. name: the model. runner: the program that runs it. Raises
    OptionWithoutEffect for such options on the command line, if the request is strict.
    """
    request = msgspec.structs.replace(request, adapters=request.adapters or request.usual_adapters or None)
    given = [
        option
        for field, option in _OPTIONS.items()
        if field not in effective and getattr(request, field) != getattr(DEFAULT_REQUEST, field)
    ]
    if given and request.is_strict:
        verb, them = ("have", "them") if len(given) > 1 else ("has", "it")
        raise OptionWithoutEffect(
            f"{' and '.join(given)} {verb} no effect on {name}, which {runner} runs.", hint=f"Omit {them}."
        )
    configured = {
        "draft": config.draft not in (None, "none"),
        "threads": config.threads is not None,
        "attention": config.attention != "auto",
        "adapters": bool(config.adapters),
        "workers": bool(config.workers),
    }
    told = [
        *given,
        *(
            f"{field} in settings.toml"
            for field, is_set in configured.items()
            if is_set and field not in effective and _OPTIONS.get(field) not in given
        ),
    ]
    return tuple(f"{what} has no effect on {name}, which {runner} runs." for what in told)
