"""What is known of the catalogue's models for MLX before their repositories are asked."""

from dataclasses import replace

import pytest

from edgechat.base.errors import SettingsError
from edgechat.models.catalogue import catalogue, read_catalogue
from edgechat.models.formats.quants import GgmlType, canonical, type_of
from edgechat.models.quality import QualityClass, kl_divergence, quality_class, worth_offering
from edgechat.models.shipped import mlx_header_of, shipped_header, shipped_quants
from edgechat.planner.estimate.memory import recurrent_bytes
from edgechat.planner.estimate.shape import shape_of
from tests.planner.headers import cache_bytes

PARAMETERS = {"qwen3-8b": 8.191e9, "llama-3.2-1b": 1.236e9, "qwen3.5-4b": 4.206e9, "mistral-7b-v0.3": 7.248e9}


def entry(name):
    return next(one for one in catalogue() if name in one.names)


def with_mlx():
    return [one for one in catalogue() if one.mlx]


def test_most_models_have_a_repository_for_mlx():
    chats = [one for one in catalogue() if one.quality is not None]
    assert len(with_mlx()) > 0.75 * len(chats)
    for one in with_mlx():
        assert all(quality_class(label) for label in one.mlx), one.name


@pytest.mark.parametrize("name", [one.name for one in with_mlx()])
def test_a_header_of_every_one(name):
    one = entry(name)
    for label, repo in one.mlx.items():
        header = mlx_header_of(one, label.upper())
        assert header is not None
        assert (header.format, header.quant, header.path) == ("mlx", label, repo)
        base = shipped_header(one, shipped_quants(one)[0])
        assert base is not None
        assert (header.architecture, header.n_params) == (base.architecture, base.n_params)
        assert cache_bytes(header, 8192, "f16") == cache_bytes(base, 8192, "f16")
        assert recurrent_bytes(header, 1) == recurrent_bytes(base, 1)
        bits = 8 * header.weights_bytes / header.n_params
        assert 4.2 < bits < 4.75, f"{bits} bits per weight"
        assert header.file_size == header.weights_bytes
        assert shape_of(header).main_type is (GgmlType.MXFP4 if label == "mxfp4" else GgmlType.Q4_0)


@pytest.mark.parametrize("name", PARAMETERS)
def test_four_bits_take_four_and_a_half(name):
    header = mlx_header_of(entry(name), "4bit")
    assert header is not None
    assert header.weights_bytes == pytest.approx(PARAMETERS[name] * 0.5625, rel=0.01)


def test_what_mlx_lm_itself_would_write(tmp_path):
    """The rule is MLX's: a model of such shapes that mlx-lm quantizes takes what is estimated."""
    utils = pytest.importorskip("mlx_lm.utils")
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    shape = {"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "vocab_size": 128_256}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
    said = {"model_type": "llama", "tie_word_embeddings": True, **shape, **heads}
    import mlx.core as mx

    model = llama.Model(llama.ModelArgs.from_dict(said))  # never computed: MLX is lazy
    model.set_dtype(mx.bfloat16)
    model, _ = utils.quantize_model(model, dict(said), 64, 4)
    real = sum(value.nbytes for _, value in tree_flatten(model.parameters()))
    header = mlx_header_of(entry("llama-3.2-1b"), "4bit")
    assert header is not None
    assert header.weights_bytes == pytest.approx(real, rel=0.001)


def test_what_is_not_known():
    assert mlx_header_of(entry("qwen3-8b"), "8bit") is None
    assert mlx_header_of(entry("qwen3-8b"), "Q4_K_M") is None
    assert mlx_header_of(entry("smollm2-360m"), "4bit") is None
    assert mlx_header_of(entry("guide"), "4bit") is None


def test_an_entry_of_the_users_own(tmp_path):
    own = tmp_path / "models.toml"
    base = '[[model]]\nname = "a"\ndescription = "d"\nlicence = "MIT"\nfile = "a.gguf"\n'
    own.write_text(base + 'mlx = { 8bit = "me/a-8bit", 4bit = "me/a-4bit" }\n')
    (one,) = read_catalogue(own)
    assert list(one.mlx) == ["8bit", "4bit"]
    assert (one.mlx_repo("8BIT"), one.mlx_repo("6bit")) == ("me/a-8bit", None)
    for wrong in ('mlx = { 4bit = "../up" }', 'mlx = { 4bit = "" }', 'mlx = { "" = "me/a" }', 'mlx = "me/a"'):
        own.write_text(f"{base}{wrong}\n")
        with pytest.raises(SettingsError, match="mlx"):
            read_catalogue(own)


def test_labels():
    assert [canonical(one) for one in ("4BIT", "4bit", "bf16", "mxfp4", "q4_k_m")] == [
        "4bit", "4bit", "BF16", "MXFP4", "Q4_K_M",
    ]  # fmt: skip
    assert [type_of(one) for one in ("4bit", "8BIT", "mxfp4", "bf16")] == [
        GgmlType.Q4_0, GgmlType.Q8_0, GgmlType.MXFP4, GgmlType.BF16,
    ]  # fmt: skip
    assert type_of("9bit") is None


def test_what_quantizations_lose():
    losses = [kl_divergence(f"{bits}bit") for bits in (8, 6, 5, 4)]
    values = [one.value for one in losses if one is not None]
    assert len(values) == 4
    assert values == sorted(values)
    assert quality_class("8bit") is QualityClass.REFERENCE
    assert quality_class("4bit") is QualityClass.REDUCED
    assert all("none has been published for MLX" in one.source for one in losses if one is not None)
    assert kl_divergence("3bit") is None
    assert quality_class("bf16") is QualityClass.REFERENCE


def test_rows_that_do_not_suit_ggufs_blocks_suit_mlx():
    header = mlx_header_of(entry("gemma-3-1b"), "4bit")
    assert header is not None
    assert worth_offering(header, "4bit")
    assert not worth_offering(replace(header, format="gguf"), "Q4_1")
