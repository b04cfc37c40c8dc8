"""Reading the folder of an MLX model: what its header says, and what is refused and how."""

import json
import random
import struct

import pytest

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import GgufArray
from edgechat.models.formats.mlx import contents, tensors
from edgechat.models.formats.mlx.contents import read_model
from edgechat.planner.estimate.memory import recurrent_bytes
from edgechat.planner.estimate.shape import shape_of
from edgechat.planner.placement.drafting import misfit
from tests.models.mlx_folders import CONFIG, mlx_files, raw, shapes, written
from tests.models.mlx_folders import safetensors as made
from tests.planner.headers import cache_bytes


def read(folder, files=None, **config):
    return read_model(written(folder / "model", mlx_files(**config) if files is None else files))


def refused(folder, files=None, **config):
    with pytest.raises(ModelFileError) as caught:
        read(folder, files, **config)
    assert caught.value.hint
    assert caught.value.message.isprintable()
    return caught.value.message


def test_what_a_header_says(tmp_path):
    header = read(tmp_path)
    assert (header.format, header.path, header.name, header.quant) == ("mlx", "model", "model", "4bit")
    assert (header.architecture, header.n_layers, header.embedding_length) == ("qwen3", 2, 64)
    assert (header.heads, header.kv_heads, header.key_length) == ((4, 4), (2, 2), 32)
    assert (header.context_length, header.vocab_size, header.sliding_window) == (4096, 320, 0)
    assert header.chat_template == "{{ messages }}"
    assert header.metadata["tokenizer.ggml.eos_token_id"] == 7
    files = mlx_files()
    assert header.file_size == len(files["model.safetensors"])
    table = struct.unpack("<Q", files["model.safetensors"][:8])[0]
    assert header.weights_bytes == header.file_size - 8 - table
    by_name = {tensor.name: tensor for tensor in header.tensors}
    assert by_name["blk.1.ffn_down.weight"].shape == (128, 64)
    assert by_name["blk.1.ffn_down.weight"].n_bytes == 64 * 128 // 2 + 2 * 64 * 2 * 2
    assert by_name["token_embd.weight"].shape == (64, 320)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_every_number_of_bits(bits, tmp_path):
    header = read(tmp_path, bits=bits, hidden_size=128)
    assert header.quant == f"{bits}bit"
    plain = read(tmp_path / "plain", bits=None, hidden_size=128)
    assert header.n_params == plain.n_params
    assert {one.name: one.shape for one in header.tensors} == {one.name: one.shape for one in plain.tensors}


@pytest.mark.parametrize(("said", "label"), [("bfloat16", "bf16"), ("float16", "f16"), ("float32", "f32")])
def test_what_is_not_quantized(said, label, tmp_path):
    assert read(tmp_path, bits=None, torch_dtype=said).quant == label


def test_what_sees_and_what_foresees_is_left_out(tmp_path):
    files = mlx_files(bits=None)
    tensors = shapes(CONFIG) | {
        "vision_tower.layers.0.q_proj.weight": ("BF16", (8, 8)),
        "mtp.layers.0.q_proj.weight": ("BF16", (8, 8)),
        "model.layers.2.self_attn.q_proj.weight": ("BF16", (8, 8)),
        "lm_head.weight": ("BF16", (320, 64)),
    }
    files["model.safetensors"] = made(tensors)
    assert read(tmp_path, files).tensors == read(tmp_path / "plain", bits=None).tensors


def test_the_template_of_its_own_file_counts_first(tmp_path):
    files = mlx_files()
    files["tokenizer_config.json"] = json.dumps(
        {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}
    ).encode()
    assert read(tmp_path / "list", files).chat_template == "d"
    files["chat_template.json"] = b'{"chat_template": "j"}'
    assert read(tmp_path / "json", files).chat_template == "j"
    files["chat_template.jinja"] = "{# ä #}".encode()
    assert read(tmp_path / "jinja", files).chat_template == "{# ä #}"
    del files["tokenizer_config.json"], files["chat_template.json"], files["chat_template.jinja"]
    assert read(tmp_path / "none", files).chat_template is None


def test_layers_that_keep_a_window_or_a_state(tmp_path):
    kinds = ["sliding_attention", "full_attention"]
    header = read(tmp_path / "a", model_type="ministral3", layer_types=kinds, sliding_window=512)
    assert (header.architecture, header.sliding_window) == ("mistral3", 512)
    assert header.shape_value("attention.sliding_window_pattern") == GgufArray("bool", 2, (True, False))
    # mlx-lm gives Gemma 2 no window, so its cache grows in every layer.
    assert read(tmp_path / "b", model_type="gemma2", sliding_window=512).sliding_window == 0
    header = read(tmp_path / "c", model_type="lfm2", layer_types=["conv", "full_attention"], conv_L_cache=3)
    assert header.kv_heads == (0, 2)
    assert header.number("shortconv.l_cache") == 3


def test_an_architecture_that_is_not_known_goes_by_its_own_name(tmp_path):
    header = read(tmp_path, model_type="nanochat")
    assert (header.architecture, header.kv_heads) == ("nanochat", (2, 2))


def test_drafts_are_compared_by_what_configs_say(tmp_path):
    large = read(tmp_path / "a", num_hidden_layers=6)
    small = read(tmp_path / "b")
    assert misfit(large, small) == ""
    assert misfit(small, large) == "it is not smaller"
    assert "320" in misfit(large, read(tmp_path / "c", vocab_size=64))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": None}, "'model_type' is missing"),
        ({"model_type": "../x"}, "'model_type' is missing"),
        ({"model_file": "evil.py"}, "requires its own code ('evil.py')"),
        ({"num_hidden_layers": None}, "'num_hidden_layers' is missing"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers"),
        ({"num_hidden_layers": 0}, "0 layers"),
        ({"num_hidden_layers": "2"}, "'num_hidden_layers'"),
        ({"num_hidden_layers": True}, "'num_hidden_layers'"),
        ({"hidden_size": -1}, "'hidden_size'"),
        ({"hidden_size": 1e99}, "'hidden_size'"),
        ({"max_position_embeddings": 10**400}, "'max_position_embeddings'"),
        ({"layer_types": ["full_attention"]}, "'layer_types'"),
        ({"layer_types": [1, 2]}, "'layer_types'"),
        ({"quantization": {"bits": 7, "group_size": 64}}, "'quantization'"),
        ({"quantization": {"bits": [4], "group_size": 64}}, "'quantization'"),
        ({"quantization": {"bits": 4, "mode": "secret"}}, "'quantization'"),
        ({"quantization": None, "quantization_config": {"quant_method": "gptq", "bits": 4}}, "'gptq'"),
    ],
)
def test_configs_that_are_refused(config, words, tmp_path):
    files = mlx_files()
    said = json.loads(files["config.json"]) | config
    files["config.json"] = json.dumps({key: one for key, one in said.items() if one is not None}).encode()
    assert words in refused(tmp_path, files)


@pytest.mark.parametrize(
    "config",
    [
        b"",
        b"[]",
        b"\xff",
        b"{" * 100_000,
        b'{"a":' * 100_000,
        b'{"model_type": "qwen3"',
        b" " * (1 << 20) + b"{}",
    ],
)
def test_what_is_no_config(config, tmp_path):
    assert refused(tmp_path, mlx_files() | {"config.json": config})


def entry(dtype, shape, first, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


NORM = "model.norm.weight"
_TABLES = {
    "truncated": mlx_files()["model.safetensors"][:-5],
    "empty": b"",
    "not a table": struct.pack("<Q", 0),
    "a table beyond the file": struct.pack("<Q", 2**62) + b"{}",
    "a table that is too large": struct.pack("<Q", tensors.MAX_TABLE + 1) + b"{}",
    "no json": raw(b"}{"),
    "a list": raw(b"[1]"),
    "deep": raw(b'{"a":' * 100_000),
    "an odd type": made(shapes(CONFIG), **{NORM: entry("F7", [64], 0, 128)}),
    "a negative size": made(shapes(CONFIG), **{NORM: entry("BF16", [-64], 0, 128)}),
    "a size beyond all": made(shapes(CONFIG), **{NORM: entry("BF16", [2**31 - 1] * 8, 0, 128)}),
    "too many dimensions": made(shapes(CONFIG), **{NORM: entry("BF16", [1] * 9, 0, 2)}),
    "offsets that overlap": made(shapes(CONFIG), **{NORM: entry("BF16", [64], 0, 128)}),
    "a hole": made(shapes(CONFIG), **{NORM: None}),
    "the wrong length": made(shapes(CONFIG), **{NORM: entry("BF16", [63], 0, 128)}),
    "a text for a number": made(shapes(CONFIG), **{NORM: entry("BF16", ["64"], 0, 128)}),
    "a long name": made({"x" * 600: ("BF16", (1,))}),
    "bytes after the last": mlx_files()["model.safetensors"] + b"x",
    "a git pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
}


@pytest.mark.parametrize("what", _TABLES)
def test_files_that_are_refused(what, tmp_path):
    message = refused(tmp_path, mlx_files() | {"model.safetensors": _TABLES[what]})
    assert "model.safetensors" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.norm.scales": ("BF16", (1,))}, None),
        ({"model.layers.0.mlp.up_proj.scales": ("BF16", (128, 3))}, "do not match"),
        ({"model.layers.0.mlp.up_proj.scales": ("BF16", (127, 1))}, "do not match"),
        ({"model.layers.0.mlp.up_proj.scales": ("BF16", (128, 0))}, "do not match"),
        ({"model.layers.0.mlp.up_proj.weight": ("U32", (128, 7))}, "do not match"),
    ],
)
def test_quantized_tensors_whose_parts_do_not_fit(changes, words, tmp_path):
    files = mlx_files() | {"model.safetensors": made(shapes(CONFIG, bits=4) | changes)}
    if words is None:
        assert read(tmp_path, files)
    else:
        assert words in refused(tmp_path, files)


def test_a_tensor_that_two_files_hold(tmp_path):
    files = mlx_files()
    files["model-extra.safetensors"] = made({NORM: ("BF16", (64,))})
    assert "two of its files contain the tensor 'model.norm.weight'" in refused(tmp_path, files)


def test_what_is_missing_is_named(tmp_path):
    files = mlx_files()
    assert "no model*.safetensors" in refused(tmp_path / "a", {"config.json": files["config.json"]})
    assert "config.json is missing" in refused(
        tmp_path / "b", {"model.safetensors": files["model.safetensors"]}
    )
    assert "no weights" in refused(tmp_path / "c", files | {"model.safetensors": raw(b"{}")})


def test_tables_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "MAX_TABLES", 3000)
    assert "more than 3000 bytes" in refused(tmp_path, n_files=3)


KINDS = (
    "qwen3", "gemma3_text", "gemma4_text", "exaone4", "qwen3_5_text", "lfm2", "deepseek_v3", "nemotron_h",
    "mamba", "gpt_oss", "granitemoehybrid", "llama",
)  # fmt: skip
KEYS = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "intermediate_size", "tie_word_embeddings", "eos_token_id",
    "torch_dtype", "layer_types", "full_attn_idxs", "hybrid_override_pattern", "sliding_window",
    "sliding_window_pattern", "text_config", "quantization", "quantization_config", "num_experts",
    "num_experts_per_tok", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
    "conv_L_cache", "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim",
    "linear_value_head_dim", "full_attention_interval", "mamba_d_state", "mamba_expand", "mamba_n_heads",
    "mamba_d_head", "global_head_dim", "architectures", "num_kv_shared_layers",
    "num_global_key_value_heads", "model_type", "model_file",
)  # fmt: skip
JUNK = (
    None, [], {}, "", "x", "LLG", -1, 0, 1, 3, 2.0, 1e400, True, [[]], [1], {"a": 1}, 2**31 - 1, 2**63,
    {"bits": []}, {"bits": 4, "mode": []}, {"quant_method": []}, {"quant_method": "mxfp4"},
    ["full_attention", "sliding_attention"], ["conv", "full_attention"], {"model_type": "gemma3_text"},
)  # fmt: skip


@pytest.mark.slow
def test_configs_full_of_junk_are_refused_in_words(tmp_path):
    dice = random.Random(7)
    data, n_read = mlx_files(bits=None)["model.safetensors"], 0
    end = 8 + struct.unpack("<Q", data[:8])[0]
    table = contents.TensorTable("model.safetensors", len(data), data[8:end])
    for _ in range(1500):
        said = CONFIG | {"model_type": dice.choice(KINDS)}
        said |= {key: dice.choice(JUNK) for key in dice.sample(KEYS, dice.choice([1, 1, 2, 3, 8]))}
        found = contents.Contents(json.dumps(said).encode(), (table,))
        try:
            header = found.header("model")
            assert header.n_layers <= 512, said
            shape_of(header)
            cache_bytes(header, 4096, "f16")
            recurrent_bytes(header, 2)
        except ModelFileError:
            continue
        n_read += 1
    assert 100 < n_read < 1400


def test_random_damage_is_refused_in_words(tmp_path):
    dice = random.Random(5)
    whole = mlx_files(bits=None)
    size = len(whole["model.safetensors"])
    n_table = struct.unpack("<Q", whole["model.safetensors"][:8])[0]
    n_refused = n_read = 0
    for number in range(150):
        name = dice.choice(["model.safetensors", "config.json", "tokenizer_config.json"])
        data = bytearray(whole[name])
        end = 8 + n_table if name == "model.safetensors" else len(data)
        for _ in range(dice.choice([1, 1, 2, 30])):
            data[dice.randrange(end)] = dice.randrange(256)
        if dice.random() < 0.2:
            del data[dice.randrange(size) if len(data) == size else dice.randrange(len(data)) :]
        try:
            found = read(tmp_path / str(number), whole | {name: bytes(data)})
        except ModelFileError as error:
            n_refused += error.message.isprintable()
        else:
            n_read += found.n_layers <= 512
    assert n_refused + n_read == 150
    assert n_refused > 50
