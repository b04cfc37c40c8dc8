"""Translation of a config.json into GGUF metadata, including the kind of each layer.

A layer caches either all tokens, a sliding window, or a recurrent state. The kinds follow mlx-lm's
`make_cache`, which uses sliding windows for fewer architectures than their developers intended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgechat.models.formats.header import GgufArray, Value
from edgechat.models.formats.mlx.config import LLAMA_CPP_NAMES, Config, default_count

QUANT = "mlx.quantization"
"""Metadata key for the label of the quantization: '4bit'."""
MAX_TEMPLATE = 1 << 20
"""Maximum size of a chat template, in bytes and in characters. The longest known have tens of thousands."""
_MLA_MODELS = ("deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4")
"""Models for which mlx-lm caches latent rows (MLA). For others, it caches the expanded keys and values."""


def metadata_of(config: Config, vocab_size: int | None) -> dict[str, Value]:
    """Return the model's metadata.

    vocab_size: the number of rows in the embedding matrix, since configs may round or omit the vocabulary
    size. Raises ModelFileError if the config does not describe the model's shape or has invalid values.
    """
    name = LLAMA_CPP_NAMES.get(config.kind, config.kind)
    metadata: dict[str, Value] = {"general.architecture": name, QUANT: config.quant}
    layers = layers_of(config)
    for entries in (
        _sizes(config),
        _experts(config),
        _attention(config, layers),
        window_entries(config, layers),
        state_entries(config),
    ):
        metadata |= {f"{name}.{key}": value for key, value in entries}
    if any(layers.recurrent):
        metadata[f"{name}.attention.recurrent_layers"] = flags(layers.recurrent)
    size = config.number("vocab_size") if vocab_size is None else vocab_size
    if size is not None:
        metadata[f"{name}.vocab_size"] = size
    return metadata


def tokenizer_entries(config: Config, tokenizer: Mapping[str, Any], template: str | None) -> dict[str, Value]:
    """Return the parts of the tokenizer's metadata that are needed for planning and chatting.

    tokenizer: contents of tokenizer_config.json. template: contents of chat_template.jinja, which takes
    precedence.
    """
    entries: dict[str, Value] = {}
    template = template or template_in(tokenizer)
    if template:
        entries["tokenizer.chat_template"] = template
    for edge in ("bos", "eos"):
        adds, number = tokenizer.get(f"add_{edge}_token"), config.get(f"{edge}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(adds, bool):
            entries[f"tokenizer.ggml.add_{edge}_token"] = adds
        if isinstance(number, int) and not isinstance(number, bool):
            entries[f"tokenizer.ggml.{edge}_token_id"] = number
    return entries


def template_in(table: Mapping[str, Any]) -> str | None:
    """Return the default chat template in a tokenizer_config.json or chat_template.json."""
    template = table.get("chat_template")
    if isinstance(template, list):
        named = {
            item.get("name"): item.get("template")
            for item in template
            if isinstance(item, dict) and isinstance(item.get("name"), str)
        }
        template = named.get("default")
    return template if isinstance(template, str) and 0 < len(template) <= MAX_TEMPLATE else None


def _default(config: Config, key: str) -> int | None:
    return default_count(config.kind, key, multimodal=config.text is not config.whole)


def _sizes(config: Config) -> Iterator[tuple[str, Value]]:
    yield "block_count", config.n_layers
    positions = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
    yield "context_length", config.require(*positions, default=_default(config, positions[0]) or 0)
    yield "embedding_length", config.require("hidden_size", "n_embd", "d_model", "dim")
    width = config.get("intermediate_size")
    if isinstance(width, int):  # Gemma 3n and 4 may list one width per layer
        yield "feed_forward_length", config.require("intermediate_size")


def _experts(config: Config) -> Iterator[tuple[str, Value]]:
    experts = config.number("num_experts", "num_local_experts", "n_routed_experts", default=0)
    if experts:
        yield "expert_count", experts
        used = ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k")
        yield "expert_used_count", config.require(*used, default=experts)


def _attention(config: Config, layers: LayerKinds) -> Iterator[tuple[str, Value]]:
    if all(layers.recurrent) and config.get("num_attention_heads") is None:  # Mamba
        yield "attention.head_count", 0
        yield "attention.head_count_kv", 0
        return
    default_heads = _default(config, "num_attention_heads")
    heads = config.require("num_attention_heads", "n_head", "num_heads", default=default_heads)
    yield "attention.head_count", heads
    if config.kind in _MLA_MODELS and config.number("kv_lora_rank"):
        yield from _mla_entries(config)
        return
    default_length = _default(config, "head_dim")
    if not default_length:
        default_length = config.require("hidden_size", "n_embd", "d_model") // max(1, heads)
    length = config.number("head_dim") or default_length
    default_kv = _default(config, "num_key_value_heads")
    n_kv = config.number("num_key_value_heads", "multi_query_kv_heads", default=default_kv)
    n_kv = heads if n_kv is None else n_kv
    global_length = config.number("global_head_dim", default=_default(config, "global_head_dim"))
    if global_length and any(layers.windowed):  # Gemma 4: longer heads in layers with full attention
        yield "attention.key_length_swa", length
        yield "attention.value_length_swa", length
        length = global_length
    nope_length, rope_length = config.number("qk_nope_head_dim"), config.number("qk_rope_head_dim")
    if nope_length is None or rope_length is None:
        yield "attention.key_length", length
    else:  # expanded MLA: keys have a rotated part that values lack
        yield "attention.key_length", nope_length + rope_length
    yield "attention.value_length", config.number("v_head_dim") or length
    yield "attention.head_count_kv", _kv_heads(config, n_kv, layers)
    shared = config.number("num_kv_shared_layers", default=_default(config, "num_kv_shared_layers"))
    if shared:
        yield "attention.shared_kv_layers", shared


def _mla_entries(config: Config) -> Iterator[tuple[str, Value]]:
    """Yield the sizes for multi-head latent attention (MLA). mlx-lm caches one short row for all heads."""
    rank, rope_length = config.require("kv_lora_rank"), config.require("qk_rope_head_dim")
    yield "attention.head_count_kv", 1
    yield "attention.key_length", rank + rope_length
    yield "attention.value_length", rank
    yield "attention.key_length_mla", config.require("qk_nope_head_dim") + rope_length
    yield "attention.value_length_mla", config.require("v_head_dim")


def _kv_heads(config: Config, n_kv: int, layers: LayerKinds) -> Value:
    """Return the number of key and value heads, as a list if it differs between layers."""
    n_global = config.number("num_global_key_value_heads")
    values = [
        0 if recurrent else n_kv if windowed or n_global is None else n_global
        for windowed, recurrent in zip(layers.windowed, layers.recurrent, strict=True)
    ]
    return n_kv if set(values) == {n_kv} else GgufArray("uint32", len(values), tuple(values))


_FIXED_PERIOD = {"gemma3": 6, "cohere2": 4}
"""Period of the layers with full attention, regardless of `layer_types`: 6 means every sixth layer."""
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
"""Period of the layers with full attention if the config has no `layer_types`: 1 means all layers."""
_DEFAULT_WINDOWS = {"gemma3": 512, "gemma3n": 512, "gemma4": 512, "gpt_oss": 128, "cohere2": 4096}
_RECURRENT_TYPES = {"linear_attention", "conv", "mamba", "recurrent"}
_ATTENTION_PERIOD = {"qwen3_5": 4, "qwen3_5_moe": 4, "qwen3_next": 4}
"""Period of the layers with attention, unless the config says otherwise. The other layers are recurrent."""


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """For each layer, whether it has windowed attention and whether it is recurrent."""

    windowed: tuple[bool, ...]
    recurrent: tuple[bool, ...]


def layers_of(config: Config) -> LayerKinds:
    """Return the kind of each layer. Raises ModelFileError."""
    n = config.n_layers
    layer_types = config.layer_types("layer_types")
    return LayerKinds(_windowed(config, n, layer_types), _recurrent(config, n, layer_types))


def state_entries(config: Config) -> Iterator[tuple[str, Value]]:
    """Yield the sizes that describe a recurrent state, using llama.cpp's names."""
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
    """Yield the window size, and a list of the layers that use it."""
    if any(layers.windowed):
        yield (
            "attention.sliding_window",
            config.require("sliding_window", default=_DEFAULT_WINDOWS.get(config.kind)),
        )
        yield "attention.sliding_window_pattern", flags(layers.windowed)


def flags(values: tuple[bool, ...]) -> GgufArray:
    """Return a metadata array of booleans."""
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
