"""Adapters against the model that they are for: what does not fit is refused before llama.cpp sees it."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from edgechat.base.errors import EdgechatError, NotAnAdapter
from edgechat.models.adapters.peft import open_adapter
from edgechat.models.adapters.reading import label_of, parse_scaled
from edgechat.models.formats.gguf import read_header, read_model
from tests.kit import DENSE, Spec, build, tiny
from tests.kit.adapters import Pairs, adapter, pairs, write_adapter

SPEC = Spec()
Q = "blk.0.attn_q.weight"
Change = Callable[[Pairs], object]


def opened(path):
    open_adapter(path, read_model(build(SPEC)))


def test_an_adapter_that_fits(tmp_path):
    found = open_adapter(adapter(tmp_path, SPEC, rank=3), read_model(build(SPEC)))
    assert (found.rank, len(found.pairs)) == (3, 14)
    assert found.n_bytes == sum(a.size + b.size for a, b in pairs(SPEC, rank=3).values()) * 4
    assert ("blk.1.ffn_down.weight", 1, 4 * 3 * (128 + 64)) in found.parts()


def _set(name, a, b):
    return lambda made: made.update({name: (np.ones(a, np.float32), np.ones(b, np.float32))})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_set(Q, (4, 63), (64, 4)), "do not fit"),
        (_set(Q, (4, 64), (65, 4)), "do not fit"),
        (_set(Q, (4, 64), (64, 5)), "do not fit"),
        (_set(Q, (64, 4), (4, 64)), "do not fit"),
        (_set(Q, (2, 4, 64), (2, 64, 4)), "do not fit"),
        (_set(Q, (65, 64), (64, 65)), "rank of 65"),
        (_set("blk.9.attn_q.weight", (4, 64), (64, 4)), "does not have"),
        (_set("output_norm.weight", (1, 64), (1, 1)), "do not fit"),
        (_set("token_embd.weight", (4, 64), (300, 4)), "do not fit"),
        (lambda made: made.clear(), "changes nothing"),
    ],
)
def test_wrong_shapes_and_names(tmp_path, change, why):
    made = pairs(SPEC)
    change(made)
    with pytest.raises(NotAnAdapter, match=why):
        opened(write_adapter(tmp_path / "a.gguf", made, DENSE))


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"general.architecture": "qwen2"}, "for the architecture 'qwen2'"),
        ({"general.type": "model"}, "not a LoRA adapter"),
        ({"general.type": None}, "not a LoRA adapter"),
        ({"general.type": 7}, "not a LoRA adapter"),
        ({"adapter.type": "dora"}, "but not a LoRA"),
        ({"adapter.type": 1}, "but not a LoRA"),
        ({"adapter.lora.alpha": 16}, "alpha"),
        ({"adapter.lora.alpha": "16"}, "alpha"),
        ({"adapter.lora.alpha": math.nan}, "alpha"),
        ({"adapter.lora.alpha": math.inf}, "alpha"),
        ({"adapter.alora.invocation_tokens": [1, 2]}, "aLoRA"),
    ],
)
def test_lying_metadata(tmp_path, overrides, why):
    with pytest.raises(NotAnAdapter, match=why):
        opened(write_adapter(tmp_path / "a.gguf", pairs(SPEC), DENSE, overrides=overrides))


def test_one_half_is_missing(tmp_path):
    path = adapter(tmp_path, SPEC)
    data = path.read_bytes()
    for old, new in ((b"attn_q.weight.lora_a", b"attn_q.weight.lora_c"), (b"0.attn_q.wei", b"5.attn_q.wei")):
        path.write_bytes(data.replace(old, new, 1))
        with pytest.raises(NotAnAdapter):
            opened(path)


def test_every_cut_is_refused(tmp_path):
    path = adapter(tmp_path, SPEC)
    data = path.read_bytes()
    for length in {0, 3, 24, len(data) - 1, *range(0, len(data), 1777)}:
        path.write_bytes(data[:length])
        with pytest.raises(EdgechatError):
            opened(path)


def test_types_that_llama_cpp_would_not_multiply_by(tmp_path):
    path = adapter(tmp_path, SPEC)
    header = read_header(path)
    data = bytearray(path.read_bytes())
    name = header.tensors[0].name.encode()
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = (2).to_bytes(4, "little")  # Q4_0
    path.write_bytes(data)
    with pytest.raises(EdgechatError):
        opened(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.gguf", ("a.gguf", 1.0)),
        ("a.gguf:0.5", ("a.gguf", 0.5)),
        ("C:\\a.gguf", ("C:\\a.gguf", 1.0)),
        ("owner/name:-1", ("owner/name", -1.0)),
        ("owner/name:Q8_0", ("owner/name:Q8_0", 1.0)),
        (":1", (":1", 1.0)),
    ],
)
def test_scales(text, expected):
    assert parse_scaled(text) == expected


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("/a/b/french.gguf:0.5", "french:0.5"),
        ("C:\\x\\french.gguf", "french"),
        ("./peft", "peft"),
        ("owner/name:2", "owner/name:2"),
        ("french", "french"),
    ],
)
def test_labels(text, label):
    assert label_of(text) == label


@pytest.mark.parametrize("text", ["a:nan", "a:inf", "a:1e3", "a:-101"])
def test_impossible_scales(text):
    with pytest.raises(NotAnAdapter, match="scale"):
        parse_scaled(text)


def test_models_that_take_none(tmp_path):
    path = adapter(tmp_path, SPEC)
    with pytest.raises(NotAnAdapter, match="embedding or reranking model"):
        open_adapter(path, read_model(tiny("qwen3-embedding")))
    other = replace(read_model(build(SPEC)), format="mlx")
    with pytest.raises(NotAnAdapter, match="MLX"):
        open_adapter(path, other)
