"""A tiny folder for each family that sees with MLX, with the weights that mlx-vlm gives a new model.

They give no meaningful answers, but have everything that their family has: results computed from them are
compared with mlx-vlm's own.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from tests.kit.build import MODELS_DIR, made
from tests.kit.mlx_tokenizer import special_ids, write_bytes
from tests.kit.tokenizers import CHATML
from tests.kit.vision import text
from tests.kit.vision.mlx import CELLS
from tests.kit.vision.models import MARKS

FORMAT = 6
_CELLS = {"gemma3": "<image_soft_token>", "gemma4": "<|image|>"}
_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_SECTIONS = {"type": "mrope", "rope_type": "default", "mrope_section": [2, 3, 3]}
_SIGLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 8,
}
_QWEN = {"depth": 3, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2}
_HYBRID = {
    "model_type": "qwen3_5_text",
    "head_dim": 32,
    "full_attention_interval": 3,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "type": "default",
        "mrope_section": [2, 1, 1],
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_TILES = {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 64}, "do_image_splitting": True}
_PIXELS = {"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 256, "max_pixels": 2**18}


def _idefics(kind: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    config = {
        "text_config": _TEXT | {"model_type": "llama"},
        "vision_config": _SIGLIP | {"model_type": f"{kind}_vision"},
        "scale_factor": 2,
    }
    name = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[kind]
    cutter = {"image_processor_type": f"{name}ImageProcessor"} | _HALF | _TILES
    return config, cutter, {"image_seq_len": 16}


def _gemma() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    own = {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "rope_theta": 1e6}
    text_config = _TEXT | own
    windows = {"sliding_window": 512, "sliding_window_pattern": 3, "mm_tokens_per_image": 16}
    config = {
        "text_config": text_config | windows,
        "vision_config": _SIGLIP | {"model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 16,
    }
    size = {"size": {"height": 64, "width": 64}}
    return config, {"image_processor_type": "Gemma3ImageProcessor"} | _HALF | size, {"image_seq_length": 16}


def _gemma4() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    own = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 512,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 64,
        "use_bidirectional_attention": "vision",
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "tie_word_embeddings": True,
    }
    vision = {
        "model_type": "gemma4_vision",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 16,
        "pooling_kernel_size": 2,
        "position_embedding_size": 64,
    }
    config = {
        "text_config": _TEXT | own,
        "vision_config": _SIGLIP | vision,
        "vision_soft_tokens_per_image": 24,
    }
    cutter = {"patch_size": 8, "pooling_kernel_size": 2, "max_soft_tokens": 24}
    return config, {}, {"image_processor": cutter}


def _llava() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    config = {
        "text_config": _TEXT | {"model_type": "llama"},
        "vision_config": _SIGLIP | {"model_type": "clip_vision_model", "projection_dim": 32},
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }
    sizes = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}
    cutter = {"image_processor_type": "CLIPImageProcessor"} | _HALF | sizes
    more = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    return config, cutter, more


def _qwen(kind: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    own: dict[str, Any] = {
        "qwen2_vl": {"embed_dim": 32, "hidden_size": 64},
        "qwen2_5_vl": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        "qwen3_vl": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
    }
    own["qwen3_5"] = own["qwen3_vl"] | {"deepstack_visual_indexes": []}
    base = kind.removesuffix("_moe")
    words = _TEXT | {"rope_scaling": dict(_SECTIONS), "vocab_size": 0}
    if base == "qwen3_vl":
        words |= {
            "head_dim": 16,
            "model_type": "qwen3_vl_text",
            "rope_scaling": _SECTIONS | {"type": "default"},
        }
    if base == "qwen3_5":
        words |= _HYBRID
    if kind != base:
        words |= _EXPERTS
    vision = {"vision_config": _QWEN | own[base] | {"model_type": kind, "in_channels": 3, "image_size": 64}}
    # The older ones describe the language model at the top level.
    config = {"text_config": words} | vision if kind.startswith("qwen3") else words | vision
    return config, {"image_processor_type": "Qwen2VLImageProcessor"} | _HALF | _PIXELS, {}


def mlx_family(kind: str, *, folder: Path = MODELS_DIR) -> Path:
    """Return the folder of a family, writing it first if necessary."""
    return made(folder / f"family-{kind}-{FORMAT}-mlx", lambda path: _write(kind, path))


def _write(kind: str, folder: Path) -> None:
    folder.mkdir()
    entries = text.tokenizer((*MARKS, *CELLS, _CELLS["gemma4"]))
    tokens = next(value for key, value, *_ in entries if key == "tokenizer.ggml.tokens")
    ids = {token: at for at, token in enumerate(tokens)}
    cell = "<|image_pad|>" if kind.startswith("qwen") else _CELLS.get(kind, "<image>")
    config, cutter, processor = _of(kind)
    inner = config.get("text_config", config)
    inner["vocab_size"] = config["vocab_size"] = len(ids)
    if "vocab_size_per_layer_input" in inner:
        inner["vocab_size_per_layer_input"] = len(ids)
    config |= {
        "model_type": kind,
        "architectures": [f"{kind}ForConditionalGeneration"],
        "torch_dtype": "float32",
        "image_token_id": ids[cell],
        "image_token_index": ids[cell],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        **special_ids(pieces=False),
    }
    for name, content in (
        ("config", config),
        ("preprocessor_config", cutter),
        ("processor_config", processor),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content))
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": cell}
    write_bytes(folder, entries, chat_template=CHATML, pad_token="<|endoftext|>", **named)
    _save_weights(kind, config, folder)


def _of(kind: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    if kind in ("idefics3", "smolvlm"):
        return _idefics(kind)
    others = {"gemma3": _gemma, "gemma4": _gemma4, "llava": _llava}
    return others[kind]() if kind in others else _qwen(kind)


def _save_weights(kind: str, config: dict[str, Any], folder: Path) -> None:
    from mlx_vlm.utils import update_module_configs

    module = importlib.import_module(f"mlx_vlm.models.{kind}")
    content = json.loads(json.dumps(config))
    made_of = module.ModelConfig.from_dict(content)
    model = module.Model(update_module_configs(made_of, module, content, ["text", "vision"]))
    mx.random.seed(1)
    # Larger weights than in a new model, so that a picture's content and position make a difference.
    model.update(tree_map(lambda one: one + 0.1 * mx.random.normal(one.shape), model.parameters()))
    weights = dict(tree_flatten(model.parameters()))
    if kind == "gemma3":  # its embeddings are also the output
        del weights["language_model.lm_head.weight"]
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
