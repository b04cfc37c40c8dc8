"""A model's config.json, as defined by the transformers library and mlx-lm."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import MAX_LAYERS, MAX_NUMBER, show, unsound

MAX_CONFIG = 1 << 20
"""Maximum size of a config.json, in bytes. Most are a few kilobytes."""

_TEXT_CLASSES = ("ForCausalLM", "LMHeadModel")
_MULTIMODAL_CLASSES = ("ForConditionalGeneration",)
_NATIVE = ("mxfp4", "mxfp8")
"""Quantizations from other tools that mlx-lm can read as they are."""
_MODES = ("mxfp4", "mxfp8", "nvfp4")
_UNSUPPORTED_CACHES = {
    *("baichuan_m1", "deepseek_v32", "falcon_h1", "llama4", "longcat_flash", "longcat_flash_ngram"),
    "minimax_m3",
}
"""Models for which mlx-lm uses composite or chunked caches."""
_USE_MLX_COPY = "Use an MLX copy of this model; the names of such copies end in -4bit or -8bit."


@dataclass(frozen=True, slots=True)
class Config:
    """A config.json. Methods raise ModelFileError for invalid values."""

    name: str
    """The model's name, for use in messages."""
    whole: Mapping[str, Any]
    text: Mapping[str, Any]
    """The language model's part of a multimodal config. Otherwise, the same as `whole`."""
    kind: str
    """The language model's `model_type`: 'qwen3', 'gemma3'."""

    def get(self, key: str) -> Any:
        """Return a value from the language model's part or else from the whole config, or None."""
        value = self.text.get(key)
        return self.whole.get(key) if value is None else value

    def number(self, *keys: str, default: int | None = None) -> int | None:
        """Return the count for the first of these keys that is present, or else `default`."""
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
                raise self.invalid(key)
            return int(value)
        return default

    def require(self, *keys: str, default: int | None = None) -> int:
        """Return a count, as `number` does. Raises ModelFileError if there is none."""
        value = self.number(*keys, default=default)
        if value is None:
            raise ModelFileError(
                f"{self.name} does not say what model it holds: {keys[0]!r} is missing.", hint=_USE_MLX_COPY
            )
        return value

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        n = self.require("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if not 0 < n <= MAX_LAYERS:
            raise ModelFileError(
                f"{self.name} says it has {n} layers; the limit is {MAX_LAYERS}.", hint=_USE_MLX_COPY
            )
        return n

    def layer_types(self, key: str) -> tuple[str, ...] | None:
        """Return the type of each layer (such as 'full_attention'), or None if they are not listed."""
        words = self.get(key)
        if not isinstance(words, list) or not words:
            return None
        if len(words) < self.n_layers or not all(isinstance(word, str) for word in words):
            raise self.invalid(key)
        return tuple(words[: self.n_layers])

    @property
    def quantization(self) -> Mapping[str, Any] | None:
        """MLX's quantization ({'bits': 4, 'group_size': 64, 'mode': 'affine'}), or None if there is none.

        Raises ModelFileError if the model was quantized by another tool.
        """
        native = self.whole.get("quantization")
        if isinstance(native, dict):
            return native
        foreign = self.get("quantization_config")
        if not isinstance(foreign, dict):
            return None
        method = foreign.get("quant_method")
        if method in _NATIVE:
            return {"bits": 8 if method == "mxfp8" else 4, "group_size": 32, "mode": method}
        if method is None and "bits" in foreign:
            return foreign
        raise ModelFileError(
            f"{self.name} has a quantization that edgechat does not support with MLX: {show(str(method))}.",
            hint=_USE_MLX_COPY,
        )

    @property
    def quant(self) -> str:
        """The label of the quantization: '4bit', 'mxfp4', 'bf16'."""
        quantization = self.quantization
        if quantization is None:
            dtype = self.get("torch_dtype") or self.get("dtype")
            return {"float16": "f16", "float32": "f32"}.get(dtype if isinstance(dtype, str) else "", "bf16")
        mode, bits = quantization.get("mode", "affine"), quantization.get("bits")
        if mode in _MODES:
            return str(mode)
        if mode != "affine" or isinstance(bits, bool) or bits not in (2, 3, 4, 5, 6, 8):
            raise self.invalid("quantization")
        return f"{bits}bit"

    def invalid(self, key: str) -> ModelFileError:
        """Return the error for an invalid value."""
        return unsound(self.name, f"its config.json has no valid value for {key!r}")


def read_config(path: Path) -> Config:
    """Read a config.json. Raises ModelFileError, OSError."""
    return parse_config(bounded(path, MAX_CONFIG), folder_name(path.parent))


def parse_config(data: bytes, name: str) -> Config:
    """Parse a config.json. Raises ModelFileError, including for a model that needs custom code."""
    config = parse_json(data, f"{name}'s config.json")
    if config.get("model_file") is not None:
        raise ModelFileError(
            f"{name} requires its own code ({show(str(config['model_file']))}), which edgechat does not run.",
            hint="Use a copy of this model that mlx-lm supports directly.",
        )
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    kind = text.get("model_type") or config.get("model_type")
    if not isinstance(kind, str) or (not kind.isidentifier() and not kind.replace("-", "_").isidentifier()):
        raise ModelFileError(
            f"{name} does not say what model it holds: 'model_type' is missing.", hint=_USE_MLX_COPY
        )
    return Config(name, config, text, kind.removesuffix("_text")[:64])


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ModelFileError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise unsound(what, "it is not valid JSON") from error
    if not isinstance(value, dict):
        raise unsound(what, "it is not a JSON object")
    return value


def is_language_model(config: Config) -> bool:
    """Return whether this is a language model, judging by its config."""
    names = config.whole.get("architectures")
    if not isinstance(names, list) or not names:
        return True
    # Without vision, a ForConditionalGeneration model is only for translation or audio input.
    sees = config.text is not config.whole or isinstance(config.whole.get("vision_config"), dict)
    endings = (*_TEXT_CLASSES, *_MULTIMODAL_CLASSES) if sees else _TEXT_CLASSES
    return any(isinstance(name, str) and name.endswith(endings) for name in names)


def require_language_model(config: Config) -> None:
    """Raise ModelFileError unless edgechat's MLX backend can run this as a language model."""
    if not is_language_model(config):
        raise ModelFileError(
            f"{config.name} is not a language model: {show(str(config.whole['architectures'][0]))}.",
            hint="Use a chat model.",
        )
    if config.kind in _UNSUPPORTED_CACHES:
        raise ModelFileError(
            f"{config.name} uses a cache that edgechat does not support with MLX.",
            hint="Use a GGUF file of the model.",
        )


def folder_name(folder: Path) -> str:
    """Return a model's name: the name of its folder or, in the hub's cache, of its repository."""
    repo = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repo.startswith("models--"):
        return repo.removeprefix("models--").replace("--", "/", 1)
    return folder.name or str(folder)


def bounded(path: Path, most: int) -> bytes:
    """Return a file's contents. Raises OSError, and ModelFileError if the file exceeds `most` bytes."""
    if not path.is_file():  # opening a pipe would block
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise unsound(path.name, f"it has more than {most} bytes")
    return data


LLAMA_CPP_NAMES = {
    "cohere": "command-r",
    "deepseek_v3": "deepseek2",
    "deepseek_v2": "deepseek2",
    "kimi_k2": "deepseek2",
    "falcon_mamba": "mamba",
    "glm4_moe": "glm4moe",
    "gpt_bigcode": "starcoder",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granitemoehybrid": "granitehybrid",
    "hunyuan_v1_dense": "hunyuan-dense",
    "kimi_linear": "kimi-linear",
    "lfm2_moe": "lfm2moe",
    "ministral3": "mistral3",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "phi": "phi2",
    "qwen2_5_vl": "qwen2vl",
    "qwen2_moe": "qwen2moe",
    "qwen2_vl": "qwen2vl",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
}
"""Architecture names in llama.cpp, keyed by `model_type`, where they differ from mlx-lm's."""

_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3": {"head_dim": 256, "num_attention_heads": 4, "num_key_value_heads": 1},
    "gemma3n": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 2},
    "gemma4": {
        "head_dim": 256,
        "global_head_dim": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "max_position_embeddings": 131_072,
    },
    "gpt_oss": {"head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8},
    "cohere2": {"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 8},
}


def default_count(kind: str, key: str, *, multimodal: bool = False) -> int | None:
    """Return mlx-lm's default for a count that a config omits, or None.

    multimodal: whether the model is part of a multimodal one, for which Gemma 3 has other defaults.
    """
    if kind == "gemma3" and multimodal:
        wide = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072}
        if key in wide:
            return wide[key]
    return _DEFAULTS.get(kind, {}).get(key)
