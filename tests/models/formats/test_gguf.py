"""The reader takes what llama.cpp takes, and refuses everything else with a sentence for people."""

import struct
import time
from itertools import pairwise

import gguf as reference
import pytest

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import NeedMoreBytes, parse_header, read_growing, read_header, read_model
from edgechat.models.formats.header import GgufArray
from edgechat.models.formats.quants import FILE_TYPES, REFUSED, GgmlType
from tests.kit import CHATML, KINDS, Q4_K_M, Shape, Spec, build, corrupt, tiny
from tests.kit.build import write
from tests.models.raw import ARCHITECTURE, entry, gguf, strings, tensor, text, u32, u64


def parse(data, file_size=None):
    return parse_header(data, len(data) if file_size is None else file_size, "x.gguf")


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_gguf_package(kind):
    path = tiny(kind)
    header, other = read_header(path), reference.GGUFReader(path)
    assert header.data_offset == other.data_offset
    assert header.file_size == path.stat().st_size
    for mine, theirs in zip(header.tensors, other.tensors, strict=True):
        assert (mine.name, mine.type.value) == (theirs.name, theirs.tensor_type.value)
        assert mine.shape == tuple(theirs.shape.tolist())
        assert (mine.n_elements, mine.n_bytes) == (theirs.n_elements, theirs.n_bytes)
        assert header.data_offset + mine.offset == theirs.data_offset
    own = {key: field for key, field in other.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata.keys() == own.keys()
    for key, value in header.metadata.items():
        expected = own[key].contents()
        if isinstance(value, GgufArray):
            assert value.count == len(expected)
            assert value.values is None or list(value.values) == expected
        else:
            assert value == expected


def test_properties():
    header = read_header(tiny("moe"))
    assert (header.architecture, header.name, header.quant) == ("qwen3moe", "tiny-moe", "F32")
    assert (header.n_layers, header.context_length, header.embedding_length) == (2, 4096, 64)
    assert (header.heads, header.kv_heads) == ((4, 4), (2, 2))
    assert (header.key_length, header.value_length, header.sliding_window) == (32, 32, 0)
    assert (header.vocab_size, header.chat_template, header.licence) == (259, CHATML, None)
    assert header.weights_bytes == 4 * header.n_params
    assert read_header(tiny("windowed")).sliding_window == 128
    assert read_header(tiny("hybrid")).kv_heads == (0, 0, 2, 0)


def test_quantized_sizes():
    path = build(Spec(shape=Shape(n_embd=256, n_ff=256), weights="Q4_K", types=Q4_K_M))
    header = read_header(path)
    assert header.quant == "Q4_K_M"
    assert {t.type for t in header.tensors} == {GgmlType.F32, GgmlType.Q4_K, GgmlType.Q6_K}
    end = header.data_offset + header.tensors[-1].offset + header.tensors[-1].n_bytes
    assert end <= path.stat().st_size < end + 32


def test_types_agree_with_the_gguf_package():
    """The package may lag behind llama.cpp: what it knows, we know or refuse."""
    for kind, block in reference.GGML_QUANT_SIZES.items():
        assert kind.value in REFUSED or GgmlType(kind.value).block == block
    for quant in reference.LlamaFileType:
        assert quant.name == "GUESSED" or FILE_TYPES[quant.value] in quant.name


def test_every_type_of_value():
    forms = [(0, "B"), (1, "b"), (2, "H"), (3, "h"), (4, "I"), (5, "i"), (10, "Q"), (11, "q"), (12, "d")]
    scalars = [entry(f"k{n}", u32(n) + struct.pack("<" + code, 7)) for n, code in forms]
    arrays = [
        entry("short", u32(9) + u32(5) + u64(3) + struct.pack("<3i", -1, 0, 1)),
        entry("long", u32(9) + u32(6) + u64(1025) + bytes(4 * 1025)),
        entry("words", strings(["a", "ß", ""])),
        entry("many", strings(["x"] * 1025)),
        entry("flag", True),
        entry("broken", u32(8) + text(b"a\xffb")),
    ]
    found = parse(gguf([*scalars, *arrays])).metadata
    assert [found[f"k{n}"] for n, _ in forms] == [7] * 9
    assert found["short"] == GgufArray("int32", 3, (-1, 0, 1))
    assert found["long"] == GgufArray("float32", 1025, None)
    assert found["words"] == GgufArray("string", 3, ("a", "ß", ""))
    assert found["many"] == GgufArray("string", 1025, None)
    assert found["flag"] is True
    assert found["broken"] == "a\ufffdb"


def test_version_2_and_another_alignment():
    entries = [ARCHITECTURE, entry("general.alignment", 64)]
    both = [tensor("a", (1,)), tensor("b", (2, 3), offset=64)]
    header = parse(gguf(entries, both, data=88, version=2, alignment=64))
    assert (header.version, header.alignment, header.data_offset % 64) == (2, 64, 0)
    assert [t.n_bytes for t in header.tensors] == [4, 24]


def test_a_tokenizer_alone_is_a_header_but_no_model(tmp_path):
    path = tmp_path / "vocab.gguf"
    path.write_bytes(gguf())
    assert read_header(path).tensors == ()
    with pytest.raises(ModelFileError, match="only a tokenizer"):
        read_model(path)


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([entry("general.type", "adapter")], "a LoRA adapter"),
        ([entry("general.type", "mmproj")], "a vision projector"),
        ([entry("general.type", "imatrix")], "an importance matrix"),
    ],
)
def test_companions_are_named(entries, what, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([ARCHITECTURE, *entries], [tensor("a")], data=128))
    with pytest.raises(ModelFileError, match=what):
        read_model(path)


# A header that comes in pieces


def test_every_beginning_asks_for_more():
    """However few bytes there are, the parser asks for more until it has them, and then agrees."""
    path = tiny()
    data = path.read_bytes()
    whole = parse_header(data, len(data))
    n = steps = 0
    while n < whole.data_offset - 32:
        with pytest.raises(NeedMoreBytes) as need:
            parse_header(data[:n], len(data))
        assert n < need.value.at_least <= whole.data_offset
        n, steps = need.value.at_least, steps + 1
    assert parse_header(data[:n], len(data)) == whole
    assert steps > 100


def test_a_long_header_is_read_in_growing_pieces():
    data = tiny().read_bytes()
    asked = []

    def first(n):
        asked.append(n)
        return data[:n]

    assert read_growing(first, len(data), "x", start=1000) == parse_header(data, len(data), "x")
    assert asked[0] == 1000
    assert all(b >= 2 * a for a, b in pairwise(asked))


def test_a_reader_that_gives_less_than_asked_ends():
    data = tiny().read_bytes()
    with pytest.raises(ModelFileError, match="is incomplete"):
        read_growing(lambda n: data[:500], len(data), "x.gguf", start=600)


@pytest.mark.slow
def test_a_large_vocabulary_is_quick(tmp_path):
    """As large as Qwen's: 152,000 tokens with scores and types, 280,000 merges."""
    tokens = strings([f"token{i}" for i in range(152_000)])
    merges = strings([f"tok en{i}" for i in range(280_000)])
    scores = u32(9) + u32(6) + u64(152_000) + bytes(4 * 152_000)
    entries = [entry("tokens", tokens), entry("merges", merges), entry("scores", scores)]
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf([ARCHITECTURE, *entries]))
    took = []
    for _ in range(3):
        start = time.process_time()
        metadata = read_header(path).metadata
        took.append(time.process_time() - start)
    assert metadata["merges"] == GgufArray("string", 280_000, None)
    assert min(took) < 0.2


# Models in several files


@pytest.fixture
def parts(tmp_path):
    write(Spec(), tmp_path / "m.gguf", split_max_tensors=8)
    return sorted(tmp_path.glob("m-*.gguf"))


def test_a_split_model_is_one(parts):
    whole = read_model(tiny())
    for named in parts:
        header = read_model(named)
        assert [(t.name, t.shape, t.n_bytes) for t in header.tensors] == [
            (t.name, t.shape, t.n_bytes) for t in whole.tensors
        ]
        assert header.weights_bytes == whole.weights_bytes
        assert header.file_size == sum(part.stat().st_size for part in parts)
        assert header.chat_template == CHATML


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(parts, missing):
    parts[missing].unlink()
    with pytest.raises(ModelFileError, match=f"{parts[missing].name} is missing: .* 3 files"):
        read_model(parts[1])


def test_parts_in_the_wrong_place(parts):
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(ModelFileError, match="does not say that it is shard 2"):
        read_model(parts[0])


def test_a_renamed_part(parts):
    renamed = parts[0].rename(parts[0].with_name("model.gguf"))
    with pytest.raises(ModelFileError, match="one of 3 shards, but its name does not say so"):
        read_model(renamed)


def test_a_damaged_part(parts):
    corrupt.truncated(parts[2], parts[2], keep=-100)
    with pytest.raises(ModelFileError, match=f"{parts[2].name} is truncated"):
        read_model(parts[0])


def test_a_name_like_a_part_is_no_split(tmp_path):
    path = tmp_path / "plain-00001-of-00001.gguf"
    path.write_bytes(tiny().read_bytes())
    assert read_model(path).n_layers == 2
