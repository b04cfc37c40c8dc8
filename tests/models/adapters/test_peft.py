"""Adapters of the PEFT library, converted to GGUF."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFReader

from edgechat.base import paths
from edgechat.base.errors import EdgechatError, NotAnAdapter
from edgechat.models.adapters import peft
from edgechat.models.adapters.peft import open_adapter
from edgechat.models.formats.gguf import read_model
from tests.kit import KINDS, Spec, build
from tests.kit.adapters import pairs, peft_folder, write_safetensors

SPEC = Spec()
PREFIX = "base_model.model.model"


def converted(folder, spec=SPEC):
    found = open_adapter(folder, read_model(build(spec)))
    return {tensor.name: tensor.data for tensor in GGUFReader(found.path).tensors}


def expected(made, factor=1.0):
    halves = {f"{name}.lora_a": a for name, (a, _) in made.items()}
    return halves | {f"{name}.lora_b": b * np.float32(factor) for name, (_, b) in made.items()}


def same(found, wanted, bound=1e-6):
    return found.keys() == wanted.keys() and all(
        np.abs(found[name] - values).max() <= bound for name, values in wanted.items()
    )


@pytest.mark.parametrize("kind", ["dense", "qwen3", "windowed"])
def test_names_and_rows_are_the_models(tmp_path, kind):
    spec = Spec(shape=KINDS[kind])
    made = pairs(spec)
    assert same(converted(peft_folder(tmp_path, made, spec.shape), spec), expected(made))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision(tmp_path, dtype):
    made = pairs(SPEC)
    assert same(converted(peft_folder(tmp_path, made, SPEC.shape, dtype=dtype)), expected(made), 0.02)


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({"lora_alpha": 8}, 2.0),
        ({"lora_alpha": 8, "use_rslora": True}, 4.0),
        ({"alpha_pattern": {"self_attn.q_proj": 2}}, 1.0),
    ],
)
def test_alpha(tmp_path, config, factor):
    made = pairs(SPEC, rank=4)
    wanted = expected(made, factor)
    if "alpha_pattern" in config:
        wanted |= {name: b / 2 for name, b in wanted.items() if name.endswith("attn_q.weight.lora_b")}
    assert same(converted(peft_folder(tmp_path, made, SPEC.shape, **config)), wanted)


def test_the_embedding_is_transposed(tmp_path):
    n_embd, n_vocab = next(
        one.shape for one in read_model(build(SPEC)).tensors if one.name == "token_embd.weight"
    )
    a, b = np.ones((2, n_vocab), np.float32), np.ones((n_embd, 2), np.float32)
    a[0, 3] = 7
    path = f"{PREFIX}.embed_tokens.lora_embedding_"
    peft_folder(tmp_path, {}, SPEC.shape)
    write_safetensors(tmp_path / "adapter_model.safetensors", {f"{path}A": a, f"{path}B": b})
    found = converted(tmp_path)
    assert found["token_embd.weight.lora_a"].shape == (n_vocab, 2)
    assert found["token_embd.weight.lora_a"][3, 0] == 7


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"alora_invocation_tokens": [1]}, "aLoRA"),
        ({"alpha_pattern": {"q_proj|k_proj": 4}}, "regular expressions"),
        ({"r": 0}, "cannot be read"),
        ({"r": 10**9}, "cannot be read"),
        ({"lora_alpha": 1e30}, "cannot be read"),
    ],
)
def test_configs_that_cannot_be_converted(tmp_path, config, why):
    with pytest.raises(NotAnAdapter, match=why):
        converted(peft_folder(tmp_path, pairs(SPEC), SPEC.shape, **config))


@pytest.mark.parametrize(
    "name",
    [
        f"{PREFIX}.layers.0.self_attn.q_proj.weight",
        f"{PREFIX}.layers.0.self_attn.rotary.lora_A.weight",
        f"{PREFIX}.layers.999.self_attn.q_proj.lora_A.weight",
        "base_model.model.vision_tower.layers.0.self_attn.q_proj.lora_A.weight",
        f"{PREFIX}.layers.0.mlp.experts.3.up_proj.lora_A.weight",
        "../../evil.lora_A.weight",
    ],
)
def test_tensors_that_cannot_be_translated(tmp_path, name):
    peft_folder(tmp_path, {}, SPEC.shape)
    write_safetensors(tmp_path / "adapter_model.safetensors", {name: np.ones((4, 64), np.float32)})
    with pytest.raises(NotAnAdapter, match=r"cannot translate|impossible layer"):
        converted(tmp_path)


def test_shapes_are_checked_before_anything_is_written(tmp_path):
    made = pairs(Spec(shape=SPEC.shape.sized(n_embd=128)))
    with pytest.raises(NotAnAdapter, match="do not fit"):
        converted(peft_folder(tmp_path, made, SPEC.shape))
    assert not list((paths.cache_dir() / peft.FOLDER).iterdir())


def test_an_architecture_whose_order_is_not_known(tmp_path):
    folder, model = peft_folder(tmp_path, pairs(SPEC), SPEC.shape), read_model(build(SPEC))
    other = replace(model, metadata=model.metadata | {"general.architecture": "falcon"})
    with pytest.raises(NotAnAdapter, match="'falcon'"):
        open_adapter(folder, other)


def test_broken_folders(tmp_path):
    with pytest.raises(NotAnAdapter, match="not an adapter"):
        converted(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(NotAnAdapter, match="has no adapter_model"):
        converted(tmp_path)
    peft_folder(tmp_path, pairs(SPEC), SPEC.shape)
    weights = tmp_path / "adapter_model.safetensors"
    data = weights.read_bytes()
    for length in (0, 7, 100, len(data) - 1):
        weights.write_bytes(data[:length])
        with pytest.raises(EdgechatError):
            converted(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{" * 100_000)
    with pytest.raises(NotAnAdapter, match="cannot be read"):
        converted(tmp_path)


def test_it_is_converted_once_and_appears_whole(tmp_path, monkeypatch):
    folder = peft_folder(tmp_path, pairs(SPEC), SPEC.shape)
    model = read_model(build(SPEC))
    cache = paths.cache_dir() / peft.FOLDER

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            open_adapter(folder, model)
    assert not list(cache.iterdir())
    path = open_adapter(folder, model).path
    before = path.stat().st_mtime_ns
    assert open_adapter(folder, model).path == path
    assert path.stat().st_mtime_ns == before
    peft_folder(folder, pairs(SPEC, seed=8), SPEC.shape)
    assert open_adapter(folder, model).path != path
