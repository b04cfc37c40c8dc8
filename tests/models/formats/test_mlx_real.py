"""Headers of MLX models held against mlx-lm itself: random models that it makes, saves and caches for."""

import json

import pytest

from edgechat.models.formats.mlx.contents import read_model
from edgechat.planner.estimate.memory import layer_cache_bytes, layer_recurrent_bytes
from edgechat.planner.estimate.shape import shape_of
from tests.planner.headers import cache_bytes

mx = pytest.importorskip("mlx.core")
utils = pytest.importorskip("mlx_lm.utils")
from mlx.utils import tree_flatten  # noqa: E402
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache  # noqa: E402

TOKENS = 320
COMMON = {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": TOKENS, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
}  # fmt: skip
QWEN35 = COMMON | {
    "model_type": "qwen3_5_text", "num_hidden_layers": 4, "head_dim": 64, "tie_word_embeddings": True,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4_text", "hidden_size": 128, "num_hidden_layers": 10, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    "global_head_dim": 128, "vocab_size_per_layer_input": TOKENS, "hidden_size_per_layer_input": 64,
    "num_kv_shared_layers": 5, "sliding_window": 64,
}  # fmt: skip
CONFIGS = {
    "llama": COMMON | {"model_type": "llama", "num_hidden_layers": 3, "tie_word_embeddings": False},
    "mistral": COMMON | {"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 64},
    "qwen3": COMMON | {
        "model_type": "qwen3", "num_hidden_layers": 2, "head_dim": 64, "tie_word_embeddings": True,
        "rope_theta": 1e6,
    },
    "qwen3moe": COMMON | {
        "model_type": "qwen3_moe", "num_hidden_layers": 2, "head_dim": 64, "tie_word_embeddings": True,
        "rope_theta": 1e6, "num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "moe_intermediate_size": 64, "norm_topk_prob": True,
    },
    "gemma3": COMMON | {
        "model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 64, "sliding_window": 64,
    },
    "gemma3-sees": {
        "model_type": "gemma3", "vocab_size": TOKENS,
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 128, "num_hidden_layers": 7,
            "intermediate_size": 256, "head_dim": 64, "sliding_window": 64,
        },
    },
    "gemma4": {"model_type": "gemma4", "vocab_size": TOKENS, "text_config": GEMMA4},
    "gpt-oss": COMMON | {
        "model_type": "gpt_oss", "num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 64, "head_dim": 32, "sliding_window": 64,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    },
    "qwen35": {"model_type": "qwen3_5", "text_config": QWEN35},
    "lfm2": COMMON | {
        "model_type": "lfm2", "num_hidden_layers": 4, "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3,
        "block_dim": 128, "block_multiple_of": 64, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False, "block_ff_dim": 256,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
    "deepseek2": COMMON | {
        "model_type": "deepseek_v3", "num_hidden_layers": 2, "num_key_value_heads": 4, "n_shared_experts": 1,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "kv_lora_rank": 64,
        "q_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
        "first_k_dense_replace": 1, "topk_method": "noaux_tc",
    },
}  # fmt: skip


def saved(folder, config, quantized):
    """Let mlx-lm make a random model and write it; return the model."""
    folder.mkdir()
    kept = json.loads(json.dumps(config))
    model_class, args = utils._get_classes(config)
    model = model_class(args.from_dict(json.loads(json.dumps(config))))
    model.set_dtype(mx.bfloat16)
    if quantized is not None:
        model, kept = utils.quantize_model(model, kept, **quantized)
    utils.save_model(folder, model)
    utils.save_config(kept, folder / "config.json")
    return model


def parameters(model):
    """Return the bytes of what mlx-lm loads."""
    return sum(value.nbytes for _, value in tree_flatten(model.parameters()))


def numbers(config):
    """Return how many weights a model has."""
    model_class, args = utils._get_classes(config)
    model = model_class(args.from_dict(json.loads(json.dumps(config))))
    return sum(value.size for _, value in tree_flatten(model.parameters()))


def kept_by_mlx(model, tokens):
    """Return what each layer's cache is, and its bytes after `tokens` in 16 bits (windows: full)."""
    caches = make_prompt_cache(model)
    model(mx.zeros((1, tokens), mx.int32), cache=caches)
    found = []
    for one in caches:
        kind = {RotatingKVCache: "window", KVCache: "all", ArraysCache: "state"}[type(one)]
        n_bytes = sum(part.nbytes for _, part in tree_flatten(one.state) if isinstance(part, mx.array))
        found.append((kind, n_bytes))
    return found


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("quantized", [None, {"group_size": 64, "bits": 4}], ids=["bf16", "4bit"])
def test_a_header_says_what_mlx_lm_loads(name, quantized, tmp_path):
    model = saved(tmp_path / name, CONFIGS[name], quantized)
    header = read_model(tmp_path / name)
    assert header.format == "mlx"
    assert header.architecture == {"mistral": "llama", "gemma3-sees": "gemma3"}.get(name, name)
    assert header.weights_bytes == parameters(model)
    assert header.quant == ("bf16" if quantized is None else "4bit")
    assert header.n_params == numbers(CONFIGS[name])
    shape = shape_of(header)
    assert len(shape.layers) == header.n_layers == len(model.layers)
    assert all(layer.weights for layer in shape.layers)
    assert shape.has_experts == (name in ("qwen3moe", "gpt-oss", "deepseek2"))
    assert shape.main_type.name == ("BF16" if quantized is None else "Q4_0")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_header_says_what_mlx_lm_keeps(name, tmp_path):
    model = saved(tmp_path / name, CONFIGS[name], None)
    header, tokens = read_model(tmp_path / name), 256
    kept = kept_by_mlx(model, tokens)
    shared = header.number("attention.shared_kv_layers", 0)
    assert len(kept) == header.n_layers - shared
    for layer, (kind, n_bytes) in enumerate(kept):
        cells, states = (
            layer_cache_bytes(header, tokens, "f16")[layer],
            layer_recurrent_bytes(header, 1)[layer],
        )
        assert bool(states) == (kind == "state"), layer
        if kind == "all":
            assert cells == n_bytes, layer
        elif kind == "window":
            assert header.sliding_window == 64
            assert cells > 0
        else:
            # In F32 all of it, where mlx-lm keeps the convolution's part in 16 bits.
            assert n_bytes <= states <= 2 * n_bytes
    windows = [kind == "window" for kind, _ in kept]
    assert any(windows) == (header.sliding_window > 0)
    assert (cache_bytes(header, 4096, "f16") < 16 * cache_bytes(header, 256, "f16")) == any(windows)


def test_layers_of_other_bits(tmp_path):
    def bits(path, module):
        return {"group_size": 64, "bits": 8} if "embed_tokens" in path or "down_proj" in path else True

    quantized = {"group_size": 64, "bits": 4, "quant_predicate": bits}
    model = saved(tmp_path / "mixed", CONFIGS["qwen3"], quantized)
    header = read_model(tmp_path / "mixed")
    assert header.weights_bytes == parameters(model)
    types = {tensor.name: tensor.type.name for tensor in header.tensors}
    assert types["token_embd.weight"] == types["blk.1.ffn_down.weight"] == "Q8_0"
    assert types["blk.1.ffn_up.weight"] == "Q4_0"
    assert header.n_params == numbers(CONFIGS["qwen3"])


@pytest.mark.parametrize(
    ("mode", "group", "bits", "kind"),
    [("mxfp4", 32, 4, "MXFP4"), ("mxfp8", 32, 8, "Q8_0"), ("nvfp4", 16, 4, "NVFP4")],
)
def test_other_modes(mode, group, bits, kind, tmp_path):
    quantized = {"group_size": group, "bits": bits, "mode": mode}
    model = saved(tmp_path / mode, CONFIGS["llama"], quantized)
    header = read_model(tmp_path / mode)
    assert (header.quant, header.weights_bytes) == (mode, parameters(model))
    assert shape_of(header).main_type.name == kind
    assert header.n_params == numbers(CONFIGS["llama"])


def test_experts_in_one_mode_and_the_rest_in_another(tmp_path):
    """As gpt-oss is converted, whose experts its makers released in MXFP4."""

    def rest(path, module):
        return True if "experts" in path else {"group_size": 64, "bits": 8, "mode": "affine"}

    quantized = {"group_size": 32, "bits": 4, "mode": "mxfp4", "quant_predicate": rest}
    model = saved(tmp_path / "mixed", CONFIGS["gpt-oss"], quantized)
    header = read_model(tmp_path / "mixed")
    assert (header.quant, header.weights_bytes) == ("mxfp4", parameters(model))
    types = {tensor.name: tensor.type.name for tensor in header.tensors}
    assert types["blk.0.ffn_up_exps.weight"] == "MXFP4"
    assert types["blk.0.attn_q.weight"] == types["output.weight"] == "Q8_0"
    assert header.n_params == numbers(CONFIGS["gpt-oss"])


def test_a_model_in_several_files(tmp_path, monkeypatch):
    def by_tens(weights, *_):
        items = list(weights.items())
        return [dict(items[at : at + 10]) for at in range(0, len(items), 10)]

    monkeypatch.setattr(utils, "make_shards", by_tens)
    model = saved(tmp_path / "split", CONFIGS["llama"], None)
    files = sorted((tmp_path / "split").glob("model-*.safetensors"))
    assert len(files) > 2
    header = read_model(tmp_path / "split")
    assert header.weights_bytes == parameters(model)
    assert header.file_size == sum(file.stat().st_size for file in files)
    assert header.n_params == numbers(CONFIGS["llama"])
