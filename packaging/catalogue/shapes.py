"""The dimensions of each model in the catalogue, as in its GGUF metadata.

Sources: the models' config.json and llama.cpp's converters. `PARAMETERS` gives the number of weights that
each model's tensors must add up to: the published count, or, for vision models, that of the text model alone.
"""

from __future__ import annotations

from typing import Any

Numbers = dict[str, Any]


def _dense(
    layers: int, embd: int, heads: int, kv: int, head: int, ff: int, vocab: int, context: int, **more: Any
) -> Numbers:
    """Return the keys that every transformer has.

    In `more`, __ stands for a dot. `tied` only affects which tensors there are.
    """
    numbers: Numbers = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": embd,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": head,
        "rope.freq_base": 1_000_000.0,
        "vocab_size": vocab,
    }
    return numbers | {key.replace("__", "."): value for key, value in more.items()}


def _gemma3(
    layers: int, embd: int, heads: int, kv: int, ff: int, vocab: int, context: int, w: int
) -> Numbers:
    return _dense(layers, embd, heads, kv, 256, ff, vocab, context, attention__sliding_window=w, tied=True)


def _lfm2(layers: int, full: tuple[int, ...], ff: int, vocab: int, **more: Any) -> Numbers:
    """Return LFM2's keys. All layers have 2048 channels.

    full: the layers with attention; the others are short convolutions.
    """
    numbers = _dense(layers, 2048, 32, 8, 64, ff, vocab, 128000, shortconv__l_cache=3, tied=True, **more)
    heads = [8 if layer in full else 0 for layer in range(layers)]
    return numbers | {"attention.head_count_kv": heads, "attention.layer_norm_rms_epsilon": 1e-5}


def _encoder(
    layers: int, embd: int, heads: int, ff: int, vocab: int, context: int, pooling: int, **more: Any
) -> Numbers:
    """Return an encoder's keys. pooling: llama.cpp's number for the pooling type."""
    return {
        "block_count": layers,
        "context_length": context,
        "embedding_length": embd,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.causal": False,
        "pooling_type": pooling,
        "vocab_size": vocab,
    } | {key.replace("__", "."): value for key, value in more.items()}


def _gemma4(
    layers: int, embd: int, heads: int, kv: tuple[int, int], ff: int, context: int, w: int, **more: Any
) -> Numbers:
    """Return Gemma 4's keys.

    kv: KV heads per windowed layer and per full layer. every: one in this many layers is full.
    """
    every, shared = more.pop("every", 6), more.pop("shared", 0)
    windowed = [(layer + 1) % every != 0 for layer in range(layers)]
    wide = [ff * 2 if shared and layer >= layers - shared else ff for layer in range(layers)]
    numbers = _dense(layers, embd, heads, kv[0], 512, ff, 262144, context, tied=True)
    return numbers | {
        "feed_forward_length": wide if more.pop("wide", False) else ff,
        "attention.head_count_kv": [kv[0] if one else kv[1] for one in windowed],
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
        "attention.sliding_window": w,
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": more.pop("per_layer", 0),
        "final_logit_softcapping": 30.0,
        "rope.dimension_count_swa": 256,
        "rope.freq_base_swa": 10000.0,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def _qwen35(
    layers: int, embd: int, heads: int, kv: int, ff: int, values: int, *, tied: bool, **more: Any
) -> Numbers:
    """Return Qwen3.5's keys.

    values: value heads per linear layer, each with 128 channels; there are always 16 key heads.
    """
    return _dense(
        layers,
        embd,
        heads,
        kv,
        256,
        ff,
        248320,
        262144,
        tied=tied,
        rope__dimension_sections=[11, 11, 10, 0],
        ssm__conv_kernel=4,
        ssm__inner_size=128 * values,
        ssm__state_size=128,
        ssm__time_step_rank=values,
        ssm__group_count=16,
        full_attention_interval=4,
        **more,
    ) | {"rope.dimension_count": 64, "rope.freq_base": 10_000_000.0}


_QWEN3_30B = _dense(48, 2048, 32, 4, 128, 6144, 151936, 40960, expert_count=128, expert_used_count=8) | {
    "expert_feed_forward_length": 768
}
_LONG = {"context_length": 262144, "rope.freq_base": 5_000_000.0}
_QWEN25_7B = _dense(28, 3584, 28, 4, 128, 18944, 152064, 32768, bias=True)
_QWEN35_27B = _qwen35(64, 5120, 24, 4, 17408, 48, tied=False)
_QWEN35_35B = _qwen35(40, 2048, 16, 2, 512, 32, tied=False, expert_count=256, expert_used_count=8) | {
    "expert_feed_forward_length": 512,
    "expert_shared_feed_forward_length": 512,
}
_LLAMA3 = {"rope.freq_base": 500000.0, "attention.layer_norm_rms_epsilon": 1e-5, "rope_freqs": True}

SHAPES: dict[str, tuple[str, Numbers]] = {
    "smollm2-135m": ("llama", _dense(30, 576, 9, 3, 64, 1536, 49152, 8192, tied=True)),
    "smollm2-360m": ("llama", _dense(32, 960, 15, 5, 64, 2560, 49152, 8192, tied=True)),
    "smollm2-1.7b": ("llama", _dense(24, 2048, 32, 32, 64, 8192, 49152, 8192, tied=True)),
    "smollm3-3b": ("smollm3", _dense(36, 2048, 16, 4, 128, 11008, 128256, 65536, tied=True)),
    "tinyllama-1.1b": ("llama", _dense(22, 2048, 32, 4, 64, 5632, 32000, 2048)),
    "gemma-3-270m": ("gemma3", _gemma3(18, 640, 4, 1, 2048, 262144, 32768, 512)),
    "gemma-3-1b": ("gemma3", _gemma3(26, 1152, 4, 1, 6912, 262144, 32768, 512)),
    "gemma-3-4b": ("gemma3", _gemma3(34, 2560, 8, 4, 10240, 262208, 131072, 1024)),
    "gemma-4-e2b": (
        "gemma4",
        _gemma4(35, 1536, 8, (1, 1), 6144, 131072, 512, every=5, shared=20, wide=True, per_layer=256),
    ),
    "gemma-4-e4b": ("gemma4", _gemma4(42, 2560, 8, (2, 2), 10240, 131072, 512, shared=18, per_layer=256)),
    "gemma-4-12b": ("gemma4", _gemma4(48, 3840, 16, (8, 1), 15360, 262144, 1024, alike=True)),
    "gemma-4-26b-a4b": (
        "gemma4",
        _gemma4(30, 2816, 16, (8, 2), 2112, 262144, 1024, alike=True, expert_count=128, expert_used_count=8)
        | {"expert_feed_forward_length": 704},
    ),
    "gemma-4-31b": ("gemma4", _gemma4(60, 5376, 32, (16, 4), 21504, 262144, 1024, alike=True)),
    "phi-4-mini": (
        "phi3",
        _dense(32, 3072, 24, 8, 128, 8192, 200064, 131072, tied=True, rope_factors=True)
        | {"rope.dimension_count": 96},
    ),
    "llama-3.2-1b": ("llama", _dense(16, 2048, 32, 8, 64, 8192, 128256, 131072, tied=True) | _LLAMA3),
    "llama-3.2-3b": ("llama", _dense(28, 3072, 24, 8, 128, 8192, 128256, 131072, tied=True) | _LLAMA3),
    "llama-3.1-8b": ("llama", _dense(32, 4096, 32, 8, 128, 14336, 128256, 131072) | _LLAMA3),
    "llama-3.3-70b": ("llama", _dense(80, 8192, 64, 8, 128, 28672, 128256, 131072) | _LLAMA3),
    "mistral-7b-v0.3": ("llama", _dense(32, 4096, 32, 8, 128, 14336, 32768, 32768)),
    "ministral-3-8b": ("mistral3", _dense(34, 4096, 32, 8, 128, 14336, 131072, 262144)),
    "granite-4.2-3b": ("granite", _dense(40, 2560, 40, 8, 64, 8192, 100352, 131072, logit_scale=1.0)),
    "lfm2.5-1.2b": ("lfm2", _lfm2(16, (2, 5, 8, 10, 12, 14), 8192, 65536)),
    "lfm2.5-8b-a1b": (
        "lfm2moe",
        _lfm2(24, (2, 6, 10, 14, 18, 21), 7168, 128000, expert_count=32, expert_used_count=4)
        | {
            "expert_feed_forward_length": 1792,
            "expert_gating_func": 2,
            "leading_dense_block_count": 2,
            "rope.freq_base": 5_000_000.0,
        },
    ),
    "qwen3-0.6b": ("qwen3", _dense(28, 1024, 16, 8, 128, 3072, 151936, 40960, tied=True)),
    "qwen3-1.7b": ("qwen3", _dense(28, 2048, 16, 8, 128, 6144, 151936, 40960, tied=True)),
    "qwen3-4b": ("qwen3", _dense(36, 2560, 32, 8, 128, 9728, 151936, 40960, tied=True) | _LONG),
    "qwen3-8b": ("qwen3", _dense(36, 4096, 32, 8, 128, 12288, 151936, 40960)),
    "qwen3-14b": ("qwen3", _dense(40, 5120, 40, 8, 128, 17408, 151936, 40960)),
    "qwen3-30b-a3b": ("qwen3moe", _QWEN3_30B | _LONG),
    "qwen3-coder-30b-a3b": ("qwen3moe", _QWEN3_30B | _LONG),
    "qwen3.5-0.8b": ("qwen35", _qwen35(24, 1024, 8, 2, 3584, 16, tied=True)),
    "qwen3.5-2b": ("qwen35", _qwen35(24, 2048, 8, 2, 6144, 16, tied=True)),
    "qwen3.5-4b": ("qwen35", _qwen35(32, 2560, 16, 4, 9216, 32, tied=True)),
    "qwen3.5-9b": ("qwen35", _qwen35(32, 4096, 16, 4, 12288, 32, tied=False)),
    "qwen3.5-27b": ("qwen35", _QWEN35_27B),
    "qwen3.6-27b": ("qwen35", _QWEN35_27B),
    "qwen3.8-27b": ("qwen35", _QWEN35_27B),
    "qwen3.5-35b-a3b": ("qwen35moe", _QWEN35_35B),
    "qwen3.6-35b-a3b": ("qwen35moe", _QWEN35_35B),
    "qwen2.5-coder-0.5b": ("qwen2", _dense(24, 896, 14, 2, 64, 4864, 151936, 32768, bias=True)),
    "qwen2.5-coder-1.5b": ("qwen2", _dense(28, 1536, 12, 2, 128, 8960, 151936, 32768, bias=True)),
    "qwen2.5-coder-7b": ("qwen2", _QWEN25_7B),
    "deepseek-r1-distill-qwen-7b": ("qwen2", _QWEN25_7B | {"context_length": 131072}),
    "gpt-oss-20b": (
        "gpt-oss",
        _dense(24, 2880, 64, 8, 64, 2880, 201088, 131072, expert_count=32, expert_used_count=4)
        | {"expert_feed_forward_length": 2880, "attention.sliding_window": 128, "rope.freq_base": 150000.0},
    ),
    "embeddinggemma": (
        "gemma-embedding",
        _gemma3(24, 768, 3, 1, 1152, 262144, 2048, 512)
        | {"rope.freq_base_swa": 10000.0, "pooling_type": 1}
        | {
            "dense_2_feat_in": 768,
            "dense_2_feat_out": 3072,
            "dense_3_feat_in": 3072,
            "dense_3_feat_out": 768,
        },
    ),
    "qwen3-embedding-0.6b": (
        "qwen3",
        _dense(28, 1024, 16, 8, 128, 3072, 151669, 32768, tied=True, pooling_type=3),
    ),
    "bge-m3": (
        "bert",
        _encoder(24, 1024, 16, 4096, 250002, 8192, 2, attention__layer_norm_epsilon=1e-5, token_types=1),
    ),
    "bge-reranker-v2-m3": (
        "bert",
        _encoder(24, 1024, 16, 4096, 250002, 8192, 4, attention__layer_norm_epsilon=1e-5, token_types=1),
    ),
    "qwen3-reranker-0.6b": (
        "qwen3",
        _dense(28, 1024, 16, 8, 128, 3072, 151669, 32768, tied=True, pooling_type=4)
        | {"classifier.output_labels": ["yes", "no"]},
    ),
    "nomic-embed-text-v1.5": (
        "nomic-bert",
        _encoder(12, 768, 12, 3072, 30522, 2048, 1, attention__layer_norm_epsilon=1e-12, token_types=2)
        | {"rope.freq_base": 1000.0},
    ),
}

PARAMETERS: dict[str, int] = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "smollm3-3b": 3_075_098_624,
    "tinyllama-1.1b": 1_100_048_384,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-4-e2b": 4_647_450_147,
    "gemma-4-e4b": 7_518_069_290,
    "gemma-4-12b": 11_907_350_576,
    "gemma-4-26b-a4b": 25_233_142_046,
    "gemma-4-31b": 30_697_345_596,
    "phi-4-mini": 3_836_021_856,
    "llama-3.2-1b": 1_235_814_432,
    "llama-3.2-3b": 3_212_749_888,
    "llama-3.1-8b": 8_030_261_312,
    "llama-3.3-70b": 70_553_706_560,
    "mistral-7b-v0.3": 7_248_023_552,
    "ministral-3-8b": 8_489_553_920,
    "granite-4.2-3b": 3_659_737_600,
    "lfm2.5-1.2b": 1_170_340_608,
    "lfm2.5-8b-a1b": 8_467_856_832,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-coder-30b-a3b": 30_532_122_624,
    "qwen3.5-0.8b": 752_393_024,
    "qwen3.5-2b": 1_881_825_088,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.6-27b": 26_895_998_464,
    "qwen3.8-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.6-35b-a3b": 34_660_610_688,
    # These two models' files have a separate output tensor, though the models tie it to the embeddings.
    "qwen2.5-coder-0.5b": 494_032_768 + 896 * 151936,
    "qwen2.5-coder-1.5b": 1_543_714_304 + 1536 * 151936,
    "qwen2.5-coder-7b": 7_615_616_512,
    "deepseek-r1-distill-qwen-7b": 7_615_616_512,
    "gpt-oss-20b": 20_914_757_184,
    "embeddinggemma": 307_581_696,
    "qwen3-embedding-0.6b": 595_776_512,
    "bge-m3": 566_703_104,
    "bge-reranker-v2-m3": 566_703_104 + 1024 * 1024 + 1024 + 1024 + 1,
    "qwen3-reranker-0.6b": 595_776_512 + 1024 * 2,
    "nomic-embed-text-v1.5": 136_727_040,
}
