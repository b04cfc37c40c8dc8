"""The formulas give what llama.cpp allocates: figures of real models, and of small ones loaded here."""

import re

import pytest

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import GgufArray, ModelHeader
from edgechat.planner.estimate.memory import cache_bytes_per_token, recurrent_bytes
from tests.kit import KINDS, Spec, build, reference, tiny
from tests.kit.reference import Reference
from tests.planner.headers import cache_bytes

MIB = 1 << 20
SNAPSHOTS = 60


def header(arch, layers, heads, kv_heads, length, **more):
    values = {
        "block_count": layers,
        "embedding_length": heads * length,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": length,
        "attention.value_length": length,
        **more,
    }
    metadata = {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in values.items()}
    return ModelHeader("x.gguf", 3, metadata, (), 0, 32, 0)


def listed(*values):
    return GgufArray("uint32", len(values), values)


LLAMA_8B = header("llama", 32, 32, 8, 128)
GEMMA3_12B = header("gemma3", 48, 16, 8, 256, **{"attention.sliding_window": 1024})
QWEN3_30B_A3B = header("qwen3moe", 48, 32, 4, 128)
LATENT = {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
DEEPSEEK2_LITE = header("deepseek2", 27, 16, 1, 576, **LATENT)


@pytest.mark.parametrize(
    ("model", "n_ctx", "cache_type", "more", "mib"),
    [
        (LLAMA_8B, 8192, "f16", {}, 1024),
        (LLAMA_8B, 32768, "f16", {}, 4096),
        (LLAMA_8B, 131072, "f16", {}, 16384),
        (LLAMA_8B, 32768, "q8_0", {}, 2176),
        (LLAMA_8B, 1000, "q4_0", {}, 36),
        (LLAMA_8B, 1000, "f16", {}, 128),
        (GEMMA3_12B, 32768, "f16", {}, 2528),
        (GEMMA3_12B, 32768, "f16", {"n_seq_max": 2}, 2848),
        (QWEN3_30B_A3B, 32768, "f16", {}, 3072),
        (DEEPSEEK2_LITE, 32768, "f16", {}, 972),
    ],
)
def test_figures_of_real_models(model, n_ctx, cache_type, more, mib):
    """Measured from llama.cpp's own breakdown of loads without allocation."""
    assert cache_bytes(model, n_ctx, cache_type, **more) == mib * MIB


def test_per_token():
    assert cache_bytes_per_token(LLAMA_8B) == 131072
    assert cache_bytes_per_token(GEMMA3_12B) == 8 * 8192


def said(what):
    """Return the sum of the sizes in llama.cpp's log, MiB."""
    return sum(float(n) for n in re.findall(rf"{what}: size = +([\d.]+) MiB", "".join(reference.log)))


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_allocates_the_same(kind, cache_type):
    """A head of 32 channels, so that quantized caches have whole blocks."""
    shape = KINDS[kind].sized(head_dim=32, n_heads=2, n_embd=64)
    path = build(Spec(shape=shape, name=f"cache-{kind}"))
    number = {"f16": 1, "q8_0": 8, "q4_0": 2}[cache_type]
    context = {"n_ctx": 16384, "n_seq_max": 2, "n_ubatch": 256, "type_k": number, "type_v": number}
    with Reference(path, flash_attn_type=1, n_rs_seq=SNAPSHOTS, **context):
        cache, states = said("llama_kv_cache"), said("llama_memory_recurrent")
    found = read_header(path)
    assert cache_bytes(found, 16384, cache_type, n_seq_max=2, n_ubatch=256) / MIB == pytest.approx(
        cache, abs=0.011
    )
    assert recurrent_bytes(found, 2, SNAPSHOTS) / MIB == pytest.approx(states, abs=0.006)


def test_recurrent_states():
    assert recurrent_bytes(read_header(tiny("hybrid")), 1) == 3 * 64 * 2 * 4
    assert recurrent_bytes(read_header(tiny("hybrid")), 2, 4) == 2 * 5 * 3 * 64 * 2 * 4
    assert recurrent_bytes(LLAMA_8B, 8) == 0


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.group_count": 16}
STATE = (3 * (4096 + 2 * 16 * 128) + 128 * 4096) * 4


@pytest.mark.parametrize(
    ("model", "attention", "recurrent"),
    [
        (header("qwen35", 32, 16, 4, 256, **SSM), 8, 24),
        (header("qwen35", 33, 16, 4, 256, nextn_predict_layers=1, **SSM), 8, 24),
        (header("qwen35", 32, 16, 4, 256, full_attention_interval=2, **SSM), 16, 16),
        (header("qwen35", 2, 16, 4, 256, **{"attention.recurrent_layers": listed(True, False)}, **SSM), 1, 1),
        (header("falcon-h1", 8, 16, 4, 256, **SSM), 8, 8),
    ],
)
def test_models_with_recurrent_layers(model, attention, recurrent):
    assert cache_bytes(model, 1024, "f16") == attention * 1024 * 2 * 2 * 4 * 256
    assert recurrent_bytes(model, 1) == recurrent * STATE


def test_feed_forward_layers_keep_nothing():
    """Nemotron-H has three kinds of layers: recurrent, attention, feed-forward."""
    lists = {"feed_forward_length": listed(0, 0, 99), "attention.head_count_kv": listed(0, 4, 0)}
    model = header("nemotron_h", 3, 16, 4, 256, **SSM)
    model.metadata.update({f"nemotron_h.{key}": value for key, value in lists.items()})
    assert cache_bytes(model, 1024, "f16") == 1024 * 2 * 2 * 4 * 256
    assert recurrent_bytes(model, 1) == STATE


def test_layers_that_share_keep_nothing():
    model = header("llama", 8, 16, 4, 256, **{"attention.shared_kv_layers": 3})
    assert cache_bytes(model, 1024, "f16") == 5 * 1024 * 2 * 2 * 4 * 256


def test_windows_that_the_file_lists():
    window = {
        "attention.sliding_window": 128,
        "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
    }
    pattern = {"attention.sliding_window_pattern": listed(True, True, False)}
    model = header("gemma4", 3, 8, 4, 256, **window, **pattern)
    full, windowed = 8192 * 2 * 2 * 4 * 256, 768 * 2 * 2 * 4 * 64
    assert cache_bytes(model, 8192, "f16") == full + 2 * windowed


def test_unknown_windows_count_as_none():
    model = header("nonesuch", 4, 8, 4, 256, **{"attention.sliding_window": 128})
    assert cache_bytes(model, 8192, "f16") == 4 * 8192 * 2 * 2 * 4 * 256


def test_a_header_without_a_shape_is_refused():
    with pytest.raises(ModelFileError, match="block_count"):
        cache_bytes(ModelHeader("x.gguf", 3, {"general.architecture": "llama"}, (), 0, 32, 0), 1024, "f16")
