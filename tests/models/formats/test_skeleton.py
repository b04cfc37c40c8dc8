"""Skeletons: a model's shape and nothing else of it, in our own writing."""

import os
import struct
import zlib
from dataclasses import replace

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import parse_header, read_header, read_model
from edgechat.models.formats.header import GgufArray
from edgechat.models.formats.skeleton import MAX_ENTRIES, MAX_TEXT, pack, skeleton, unpack, write_skeleton
from tests.kit import KINDS, Spec, tiny
from tests.kit.build import write
from tests.kit.published import published


def parse(data):
    return parse_header(data, 2**50, "x")


def with_entries(**entries):
    header = published("llama-3.1-8b")
    header = replace(header, tensors=header.tensors[:2])
    return replace(header, metadata=header.metadata | {f"llama.{key}": v for key, v in entries.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_the_shape_is_kept_and_nothing_else(kind):
    header = read_model(tiny(kind))
    made = parse(skeleton(header))
    assert (made.tensors, made.architecture, made.name) == (header.tensors, header.architecture, header.name)
    assert (made.vocab_size, made.quant) == (header.vocab_size, header.quant)
    own = {key: value for key, value in header.metadata.items() if key.startswith(f"{header.architecture}.")}
    assert own.items() <= made.metadata.items()
    others = {key for key in made.metadata if not key.startswith(f"{header.architecture}.")}
    general = {f"general.{key}" for key in ("architecture", "name", "license", "file_type")}
    assert others <= {*general, "tokenizer.ggml.model"}
    assert made.metadata["tokenizer.ggml.model"] == "none"


def test_another_reader_agrees(tmp_path):
    path = tmp_path / "a.gguf"
    write_skeleton(read_model(tiny("hybrid")), path)
    found = gguf.GGUFReader(path)
    original = gguf.GGUFReader(tiny("hybrid"))
    for ours, theirs in zip(found.tensors, original.tensors, strict=True):
        assert (ours.name, list(ours.shape), ours.tensor_type) == (
            theirs.name,
            list(theirs.shape),
            theirs.tensor_type,
        )
    for key, field in found.fields.items():
        if key.startswith("lfm2.") and key != "lfm2.vocab_size":
            assert field.types == original.fields[key].types


@pytest.mark.skipif(os.name == "nt", reason="counts blocks")
def test_a_large_model_takes_no_space(tmp_path):
    header, path = published("qwen3-30b-a3b"), tmp_path / "a.gguf"
    write_skeleton(header, path)
    assert path.stat().st_size > header.weights_bytes > 2**34
    assert path.stat().st_blocks * 512 < 2**17
    assert read_header(path).tensors == header.tensors


def test_a_split_model_becomes_one(tmp_path):
    write(Spec(name="split"), tmp_path / "a.gguf", split_max_tensors=7)
    header = read_model(next(tmp_path.glob("a-00001-of-*.gguf")))
    made = parse(skeleton(header))
    assert [(t.name, t.n_bytes) for t in made.tensors] == [(t.name, t.n_bytes) for t in header.tensors]
    assert "split.count" not in made.metadata


def test_its_own_alignment_is_kept():
    header = replace(read_model(tiny()), alignment=64)
    assert parse(skeleton(header)).alignment == 64


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_packed_and_back(name):
    header = published(name)
    packed = pack(header)
    assert len(packed) < 8192
    back = unpack(packed, "a")
    assert (back.tensors, back.file_size, back.n_params) == (
        header.tensors,
        header.file_size,
        header.n_params,
    )
    assert skeleton(back) == skeleton(header)
    assert pack(back) == packed


@given(st.binary(max_size=200))
def test_what_is_no_packed_skeleton_is_refused(data):
    with pytest.raises(ModelFileError):
        unpack(data, "a")


@pytest.mark.slow
def test_a_bomb_is_refused():
    with pytest.raises(ModelFileError, match="larger"):
        unpack(struct.pack("<Q", 1) + zlib.compress(bytes(2**28)), "a")
    with pytest.raises(ModelFileError, match="truncated"):
        unpack(pack(published("llama-3.1-8b"))[:-50], "a")


@pytest.mark.parametrize(
    "entry",
    [
        "x" * (MAX_TEXT + 1),
        GgufArray("uint32", 5000, None),
        GgufArray("string", 1, ("x" * (MAX_TEXT + 1),)),
    ],
)
def test_what_no_shape_needs_is_refused(entry):
    with pytest.raises(ModelFileError, match="cannot be copied for a dry run"):
        skeleton(with_entries(odd=entry))


def test_too_many_entries_are_refused():
    with pytest.raises(ModelFileError, match="entries"):
        skeleton(with_entries(**{f"k{n}": n for n in range(MAX_ENTRIES)}))


_scalars = st.booleans() | st.integers(-(2**31), 2**64 - 1) | st.floats(width=32, allow_nan=False)


@given(st.dictionaries(st.text("abc._", min_size=1), _scalars | st.text(max_size=50), max_size=5))
def test_any_value_comes_back(entries):
    entries.pop("vocab_size", None)
    made = parse(skeleton(with_entries(**entries)))
    assert {key: made.metadata[f"llama.{key}"] for key in entries} == entries
    assert all(type(made.metadata[f"llama.{key}"]) is type(value) for key, value in entries.items())


def test_a_number_beyond_float32_is_kept():
    assert parse(skeleton(with_entries(odd=1e300))).metadata["llama.odd"] == 1e300
