"""Translation of a config.json to the metadata keys of GGUF files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgechat.models.formats.header import GgufArray, Value
from edgechat.models.formats.mlx.architectures import default_count, llama_cpp_name
from edgechat.models.formats.mlx.config import Config
from edgechat.models.formats.mlx.layers import LayerKinds, flags, layers_of, state_entries, window_entries

QUANT = "mlx.quantization"
"""The key of the label: '4bit'."""
_MAX_TEMPLATE = 1 << 20
"""Characters of a chat template; the longest known have some tens of thousands."""
_MLA_MODELS = ("deepseek_v3", "kimi_k2", "glm4_moe_lite", "mistral4")
"""Models whose latent rows (MLA) mlx-lm caches; of others it caches the expanded keys and values."""


def metadata_of(config: Config, vocab_size: int | None) -> dict[str, Value]:
    """Return the metadata. vocab_size: the rows of the embedding, which configs round or leave out.

    Raises ModelFileError where the config lacks the shape of the model, or garbles it.
    """
    name = llama_cpp_name(config.kind)
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
    """Return the metadata of the tokenizer that plans and chats need.

    tokenizer: tokenizer_config.json. template: chat_template.jinja, which counts before what is in there.
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
    """Return the chat template of a tokenizer_config.json or chat_template.json: of several, the default."""
    template = table.get("chat_template")
    if isinstance(template, list):
        named = {
            item.get("name"): item.get("template")
            for item in template
            if isinstance(item, dict) and isinstance(item.get("name"), str)
        }
        template = named.get("default")
    return template if isinstance(template, str) and 0 < len(template) <= _MAX_TEMPLATE else None


def _default(config: Config, key: str) -> int | None:
    return default_count(config.kind, key, multimodal=config.text is not config.whole)


def _sizes(config: Config) -> Iterator[tuple[str, Value]]:
    yield "block_count", config.n_layers
    positions = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
    yield "context_length", config.require(*positions, default=_default(config, positions[0]) or 0)
    yield "embedding_length", config.require("hidden_size", "n_embd", "d_model", "dim")
    width = config.get("intermediate_size")
    if isinstance(width, int):  # Gemma 3n and 4 may list one for each layer
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
    if global_length and any(layers.windowed):  # Gemma 4: what sees everything has longer heads
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
    """Yield the sizes of multi-head latent attention (MLA): mlx-lm caches one short row for all heads."""
    rank, rope_length = config.require("kv_lora_rank"), config.require("qk_rope_head_dim")
    yield "attention.head_count_kv", 1
    yield "attention.key_length", rank + rope_length
    yield "attention.value_length", rank
    yield "attention.key_length_mla", config.require("qk_nope_head_dim") + rope_length
    yield "attention.value_length_mla", config.require("v_head_dim")


def _kv_heads(config: Config, n_kv: int, layers: LayerKinds) -> Value:
    """Return the number of key heads, for each layer if they differ."""
    n_global = config.number("num_global_key_value_heads")
    values = [
        0 if recurrent else n_kv if windowed or n_global is None else n_global
        for windowed, recurrent in zip(layers.windowed, layers.recurrent, strict=True)
    ]
    return n_kv if set(values) == {n_kv} else GgufArray("uint32", len(values), tuple(values))
