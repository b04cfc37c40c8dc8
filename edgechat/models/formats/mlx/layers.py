"""What each layer of an MLX model caches: all tokens, a sliding window, or a recurrent state.

As mlx-lm's `make_cache` has it, which gives windows to fewer architectures than their makers did: where it
keeps everything, so says this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgechat.models.formats.header import GgufArray, Value
from edgechat.models.formats.mlx.config import Config

_FIXED_PERIOD = {"gemma3": 6, "cohere2": 4}
"""Period of the layers with full attention, whatever `layer_types` says."""
_PERIOD_WITHOUT_LIST = {
    "afmoe": 1,
    "gemma3n": 5,
    "gemma4": 5,
    "gpt_oss": 2,
    "llama": 1,
    "mistral": 1,
    "ministral3": 1,
    "olmo3": 4,
}
"""The same in the absence of `layer_types`; 1: all layers have full attention."""
_DEFAULT_WINDOWS = {"gemma3": 512, "gemma3n": 512, "gemma4": 512, "gpt_oss": 128, "cohere2": 4096}
_RECURRENT_TYPES = {"linear_attention", "conv", "mamba", "recurrent"}
_ATTENTION_PERIOD = {"qwen3_5": 4, "qwen3_5_moe": 4, "qwen3_next": 4}
"""Period of the layers with attention among recurrent ones, in the absence of a list."""


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """For each layer, whether its attention is windowed, and whether it is recurrent instead."""

    windowed: tuple[bool, ...]
    recurrent: tuple[bool, ...]


def layers_of(config: Config) -> LayerKinds:
    """Return the kinds of the layers. Raises ModelFileError."""
    n = config.n_layers
    layer_types = config.layer_types("layer_types")
    return LayerKinds(_windowed(config, n, layer_types), _recurrent(config, n, layer_types))


def state_entries(config: Config) -> Iterator[tuple[str, Value]]:
    """Yield the sizes of a recurrent state under llama.cpp's names."""
    if config.number("conv_L_cache") is not None:  # LFM2
        yield "shortconv.l_cache", config.require("conv_L_cache")
    heads = config.number("linear_num_value_heads")
    if heads is not None:  # Qwen3.5: gated delta net
        yield "ssm.conv_kernel", config.require("linear_conv_kernel_dim", default=4)
        yield "ssm.state_size", config.require("linear_key_head_dim")
        yield "ssm.group_count", config.require("linear_num_key_heads")
        yield "ssm.inner_size", heads * config.require("linear_value_head_dim")
        yield "full_attention_interval", config.require("full_attention_interval", default=4)
    elif config.number("mamba_d_state", "ssm_state_size") is not None:
        yield "ssm.conv_kernel", config.require("mamba_d_conv", "conv_kernel", default=4)
        yield "ssm.state_size", config.require("mamba_d_state", "ssm_state_size")
        yield "ssm.group_count", config.require("mamba_n_groups", "n_groups", default=1)
        yield "ssm.inner_size", _mamba_width(config)


def window_entries(config: Config, layers: LayerKinds) -> Iterator[tuple[str, Value]]:
    """Yield the window, and which layers have it."""
    if any(layers.windowed):
        yield (
            "attention.sliding_window",
            config.require("sliding_window", default=_DEFAULT_WINDOWS.get(config.kind)),
        )
        yield "attention.sliding_window_pattern", flags(layers.windowed)


def flags(values: tuple[bool, ...]) -> GgufArray:
    """Return a list of the metadata."""
    return GgufArray("bool", len(values), values)


def _windowed(config: Config, n: int, layer_types: tuple[str, ...] | None) -> tuple[bool, ...]:
    kind = config.kind
    if config.get("sliding_window") is None and _DEFAULT_WINDOWS.get(config.kind) is None:
        return (False,) * n
    if kind in _FIXED_PERIOD:
        period = config.require("sliding_window_pattern", default=_FIXED_PERIOD[kind])
    elif kind == "exaone4":
        pattern = config.get("sliding_window_pattern")
        letters = pattern if isinstance(pattern, str) and pattern else "G"
        return tuple(letters[i % len(letters)] == "L" for i in range(n))
    elif kind in _PERIOD_WITHOUT_LIST:
        if layer_types is not None:
            return tuple(word == "sliding_attention" for word in layer_types)
        period = config.require("sliding_window_pattern", default=_PERIOD_WITHOUT_LIST[kind])
    else:
        return (False,) * n
    return tuple(period > 0 and i % period < period - 1 for i in range(n))


def _recurrent(config: Config, n: int, layer_types: tuple[str, ...] | None) -> tuple[bool, ...]:
    if config.kind in _ATTENTION_PERIOD:
        period = max(1, config.require("full_attention_interval", default=_ATTENTION_PERIOD[config.kind]))
        return tuple((i + 1) % period != 0 for i in range(n))
    attending = config.get("full_attn_idxs")
    if isinstance(attending, list):
        attention_layers = {index for index in attending if isinstance(index, int)}
        return tuple(i not in attention_layers for i in range(n))
    if layer_types is not None:
        return tuple(word in _RECURRENT_TYPES for word in layer_types)
    letters = config.get("hybrid_override_pattern")
    if isinstance(letters, str) and len(letters) >= n:  # Nemotron-H: M, *, - or E
        return tuple(letter == "M" for letter in letters[:n])
    return (config.kind in ("mamba", "mamba2"),) * n


def _mamba_width(config: Config) -> int:
    width = config.number("mamba_d_ssm", "mamba_intermediate_size")
    if width is None and config.number("mamba_n_heads", "mamba_num_heads") is not None:
        heads = config.require("mamba_n_heads", "mamba_num_heads")
        width = heads * config.require("mamba_d_head", "mamba_head_dim")
    return (
        config.require("mamba_expand", default=2) * config.require("hidden_size") if width is None else width
    )
