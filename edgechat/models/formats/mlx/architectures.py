"""Architecture names of mlx-lm and llama.cpp, and mlx-lm's defaults for missing config values."""

from __future__ import annotations

_NAMES = {
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
"""Where the names differ; most are the same."""

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


def llama_cpp_name(kind: str) -> str:
    """Return llama.cpp's name of mlx-lm's architecture `kind`, or `kind` if there is none."""
    return _NAMES.get(kind, kind)


def default_count(kind: str, key: str, *, multimodal: bool = False) -> int | None:
    """Return mlx-lm's default for a count that a config omits, or None.

    multimodal: the model is the language part of a multimodal one, for which Gemma 3 has other values.
    """
    if kind == "gemma3" and multimodal:
        wide = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072}
        if key in wide:
            return wide[key]
    return _DEFAULTS.get(kind, {}).get(key)
