"""What Ollama keeps beside a model: parameters, a system prompt, a template, adapters.

They are layers of its manifest, small files that anyone may have written: each has a limit, and what is not
understood is named and left out.

    params     JSON: {"temperature": 0.6, "stop": ["<|eot_id|>"], "num_ctx": 8192, ...}
    system     text; template: text, in Go's template language; license: text
    adapter    a LoRA adapter as a GGUF file
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from edgechat.base.paths import read_bytes
from edgechat.base.text import flat, one_line
from edgechat.models.local.ollama.go_templates import recognized
from edgechat.settings import SamplingDefaults

MAX_PARAMS, MAX_TEXT = 1 << 16, 1 << 18
"""Bytes of a layer."""
MAX_STOPS, MAX_STOP = 32, 256
"""Stop strings, and characters of one."""
MAX_CONTEXT = 1 << 24
MAX_ADAPTERS = 4
_SHOWN = 60

_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_OF_LOADING = frozenset(
    [
        "f16_kv",
        "logits_all",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "penalize_newline",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    ]
)
"""Parameters of how Ollama loads a model, which nobody misses: edgechat plans that itself."""


class OllamaLayers(NamedTuple):
    """The files of a manifest beside the weights; each may be missing, or not be there."""

    params: Path | None = None
    system: Path | None = None
    template: Path | None = None
    license: Path | None = None
    adapters: tuple[Path, ...] = ()


class ModelDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds for a model where neither the user's settings nor a request say otherwise."""

    sampling: SamplingDefaults = SamplingDefaults()
    context: int | None = None
    """Tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a reply."""
    system: str = ""
    """The system prompt of conversations that have none."""
    chat_format: str = ""
    """The format that its template is of, as people call it; '' where there is none, or it is not known."""
    template: str | None = None
    """The Jinja source of that format, for a file without a template of its own."""
    adapters: tuple[str, ...] = ()
    """Paths of LoRA adapters that belong to it."""
    licence: str = ""
    """The first line of it."""
    unread: tuple[str, ...] = ()
    """Sentences about what has no effect."""


NO_DEFAULTS = ModelDefaults()


def read_defaults(layers: OllamaLayers) -> ModelDefaults:
    """Return what the layers say; what cannot be read or understood is in `unread`."""
    unread: list[str] = []
    params = _params(layers.params, unread)
    sampling, context, stop = _sampling(params, unread), _context(params, unread), _stop(params, unread)
    if odd := sorted(params.keys() - _OF_LOADING):
        names = ", ".join(one_line(name, 40) for name in odd[:8])
        unread.append(f"Parameters of Ollama that have no effect here: {names}.")
    template = _text(layers.template, "template", unread)
    found = recognized(template)
    if template.strip() and found is None:
        unread.append(
            "Ollama's template for this model is not read: it is in Go's language, and of no format that "
            "edgechat knows."
        )
    return ModelDefaults(
        sampling=sampling,
        context=context,
        stop=stop,
        system=_text(layers.system, "system prompt", unread).strip(),
        chat_format=found.name if found else "",
        template=found.source if found else None,
        adapters=tuple(map(str, layers.adapters)),
        licence=one_line(_text(layers.license, "license", []).strip().partition("\n")[0], 80),
        unread=tuple(unread),
    )


class LayerTexts(msgspec.Struct, frozen=True, kw_only=True):
    """What Ollama keeps beside a model, as its own server shows it; '' for what is not there."""

    parameters: str = ""
    """A line for each, stop texts too: its name, spaces up to a width of 30, and its value as JSON."""
    system: str = ""
    template: str = ""
    """In Go's template language."""
    license: str = ""


def layer_texts(layers: OllamaLayers) -> LayerTexts:
    """Read the layers as they are; what cannot be read is left out."""
    unread: list[str] = []
    lines = [
        f"{one_line(name, 40):<30} {json.dumps(value)}"
        for name, values in _params(layers.params, unread).items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return LayerTexts(
        parameters="\n".join(lines),
        system=_text(layers.system, "system prompt", unread),
        template=_text(layers.template, "template", unread),
        license=_text(layers.license, "license", unread),
    )


def in_words(defaults: ModelDefaults) -> str:
    """Return the parameters in a line; '' for none."""
    words = [f"{name} {value:g}" for name, value in defaults.sampling.given().items()]
    if defaults.context is not None:
        words.append(f"context {defaults.context}")
    if defaults.stop:
        words.append("stop " + " ".join(ascii(text) for text in defaults.stop))
    return ", ".join(words)


def system_in_words(defaults: ModelDefaults) -> str:
    """Return the beginning of the system prompt."""
    return flat(one_line(defaults.system, _SHOWN))


def _params(path: Path | None, unread: list[str]) -> dict[str, Any]:
    text = _text(path, "parameters", unread, most=MAX_PARAMS)
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    unread.append("Ollama's parameters for this model are not a JSON object.")
    return {}


def _sampling(params: dict[str, Any], unread: list[str]) -> SamplingDefaults:
    found = SamplingDefaults()
    for theirs, ours in _SAMPLING.items():
        if theirs not in params:
            continue
        value = params.pop(theirs)
        try:
            one = msgspec.convert({ours: value}, SamplingDefaults)
        except msgspec.ValidationError:
            unread.append(f"Ollama's {theirs} = {one_line(str(value), 40)} is not valid.")
            continue
        found = one.over(found)
    return found


def _context(params: dict[str, Any], unread: list[str]) -> int | None:
    if "num_ctx" not in params:
        return None
    value = params.pop("num_ctx")
    if type(value) is int and 0 < value <= MAX_CONTEXT:
        return value
    unread.append(f"Ollama's num_ctx = {one_line(str(value), 40)} is not valid.")
    return None


def _stop(params: dict[str, Any], unread: list[str]) -> tuple[str, ...]:
    found = params.pop("stop", [])
    texts = found if isinstance(found, list) else [found]
    sound = [text for text in texts[:MAX_STOPS] if isinstance(text, str) and 0 < len(text) <= MAX_STOP]
    if len(sound) < len(texts):
        unread.append(f"{len(texts) - len(sound)} of Ollama's {len(texts)} stop texts are not valid.")
    return tuple(dict.fromkeys(sound))


def _text(path: Path | None, what: str, unread: list[str], *, most: int = MAX_TEXT) -> str:
    if path is None:
        return ""
    try:
        return read_bytes(path, most).decode("utf-8", "replace")
    except OSError as error:
        unread.append(f"Ollama's {what} for this model cannot be read: {error.strerror}.")
        return ""
