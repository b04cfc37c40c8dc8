"""The headers that come with edgechat: exact by what the hub says of the files, and what the maker makes."""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from edgechat.base import paths
from edgechat.base.errors import ModelFileError
from edgechat.models import shipped
from edgechat.models.catalogue import read_catalogue
from edgechat.models.formats.quants import GgmlType
from edgechat.models.formats.skeleton import pack, unpack
from edgechat.models.shipped import shipped_header, shipped_quants, shipped_size

MAKER = Path(__file__).parents[2] / "packaging" / "catalogue"
CATALOGUE = read_catalogue(paths.shipped("models.toml"))
ENTRIES = {entry.name: entry for entry in CATALOGUE if entry.repo is not None}

# Bytes of published files. What they have beyond the weights (metadata, tokenizer) is the same in all quants
# of a model; if a tensor had the wrong type, it would not be.
EXACT = {
    "llama-3.1-8b": {
        "Q2_K": 3_179_136_416,
        "Q3_K_S": 3_664_504_224,
        "Q3_K_M": 4_018_922_912,
        "Q3_K_L": 4_321_961_376,
        "IQ4_XS": 4_447_667_616,
        "Q4_K_S": 4_692_673_952,
        "Q4_K_M": 4_920_739_232,
        "Q5_K_S": 5_599_298_976,
        "Q5_K_M": 5_732_992_416,
        "Q6_K": 6_596_011_424,
        "Q8_0": 8_540_775_840,
    },
    "mistral-7b-v0.3": {"Q2_K": 2_722_877_664, "IQ4_XS": 3_911_962_848, "Q4_K_M": 4_372_812_000},
    "qwen3-8b": {"Q4_K_M": 5_027_783_488, "Q6_K": 6_725_899_040, "Q8_0": 8_709_518_112},
    "qwen3-coder-30b-a3b": {"Q2_K": 11_258_612_896, "Q4_K_S": 17_456_012_448, "Q8_0": 32_483_935_392},
    "gemma-3-1b": {"Q4_K_M": 806_058_240, "Q8_0": 1_069_306_368, "F16": 2_006_573_568},
    "gemma-4-26b-a4b": {"Q4_K_M": 16_796_015_136, "Q8_0": 26_859_858_464},
    "nomic-embed-text-v1.5": {"Q6_K": 113_042_528, "Q8_0": 146_146_432, "F16": 274_290_560},
    "qwen2.5-coder-7b": {"Q4_0": 4_431_390_720, "Q4_K_M": 4_683_073_536, "F16": 15_237_853_184},
}


def header(name, quant):
    found = shipped_header(ENTRIES[name], quant)
    assert found is not None
    return found


def in_file(found):
    """Bytes of the weights with their padding."""
    return found.tensors[-1].offset + found.tensors[-1].n_bytes


@pytest.fixture(scope="module")
def maker():
    """packaging/catalogue/build.py, which lies outside the package."""
    sys.path.insert(0, str(MAKER))
    try:
        import build

        yield build
    finally:
        sys.path.remove(str(MAKER))
        for name in ("build", "mixtures", "shapes", "tensors"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("name", EXACT)
def test_weights_are_exact_to_the_byte(name):
    found = {quant: header(name, quant) for quant in EXACT[name]}
    assert {quant: one.file_size for quant, one in found.items()} == EXACT[name]
    beyond = [one.file_size - in_file(one) for one in found.values()]
    assert max(beyond) - min(beyond) <= 64  # a metadata entry more or less


@pytest.mark.slow
def test_every_model_has_as_many_weights_as_published(maker):
    assert ENTRIES.keys() == maker.PARAMETERS.keys()
    for name, entry in ENTRIES.items():
        assert shipped_quants(entry), name
        for quant in shipped_quants(entry):
            assert header(name, quant).n_params == maker.PARAMETERS[name]


@pytest.mark.slow
def test_all_sizes_are_near_the_published_ones(maker):
    known = maker.sizes()
    checked = 0
    for name, entry in ENTRIES.items():
        for quant in shipped_quants(entry):
            published = known[name].get(quant)
            if published is not None:
                found = header(name, quant)
                assert found.file_size == published
                off = abs((in_file(found) + known[name]["header"]) / published - 1)
                assert off < 0.015, (name, quant)
                checked += off < 0.0005
    assert checked >= 95


@pytest.mark.slow
def test_a_header_is_that_of_its_entry():
    assert len(ENTRIES) > 30
    for entry in ENTRIES.values():
        assert entry.quant is not None
        found = shipped_header(entry, entry.quant)
        assert found is not None, entry.name
        assert found.path == entry.file_for(entry.quant)
        assert found.quant in entry.labels
        assert found.context_length == entry.context
        assert in_file(found) < found.file_size
        assert set(shipped_quants(entry)) <= set(entry.labels)


def test_a_draft_is_much_smaller_and_has_the_same_vocabulary():
    pairs = [(entry, ENTRIES[entry.draft]) for entry in ENTRIES.values() if entry.draft]
    assert len(pairs) >= 8
    for target, draft in pairs:
        large, small = (header(one.name, shipped_quants(one)[0]) for one in (target, draft))
        assert small.n_params < large.n_params / 2
        assert abs(large.vocab_size - small.vocab_size) <= 128  # what llama.cpp allows
        assert draft.draft is None


def test_what_was_left_out():
    tinyllama = ENTRIES["tinyllama-1.1b"]
    assert shipped_header(tinyllama, "Q2_K") is None  # of 2023, when Q2_K was another mixture
    assert shipped_size(tinyllama, "Q2_K") is None
    assert shipped_size(tinyllama, "q4_k_m") == 668_788_096
    guide = next(entry for entry in CATALOGUE if entry.repo is None)
    assert shipped_quants(guide) == ()
    assert shipped_header(guide, "Q8_0") is None


def test_quantizations_go_from_small_to_large():
    assert shipped_quants(ENTRIES["qwen3-0.6b"]) == (
        *("Q2_K", "Q3_K_M", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"),
    )


def test_another_repository_is_another_file():
    moved = msgspec.structs.replace(ENTRIES["qwen3-8b"], repo="someone/else")
    assert shipped_quants(moved) == ()
    assert shipped_header(moved, "Q4_K_M") is None


def test_it_can_be_packed_like_any_other():
    found = header("qwen3-0.6b", "Q4_K_M")
    again = unpack(pack(found), found.path)
    assert again.tensors == found.tensors
    assert again.quant == "Q4_K_M"
    assert {tensor.type for tensor in found.tensors} == {GgmlType.F32, GgmlType.Q4_K, GgmlType.Q6_K}


def test_the_file_is_small():
    assert paths.shipped(shipped.FILE).stat().st_size < 300_000


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gemma-4-26b-a4b", "qwen3.5-0.8b", "gpt-oss-20b"])
def test_it_is_what_the_maker_makes(maker, name):
    made = maker.headers(ENTRIES[name], maker.sizes()[name])
    assert {one.quant for one in made} == set(shipped_quants(ENTRIES[name]))
    for one in made:
        found = header(name, one.quant)
        assert found.tensors == one.tensors
        assert found.file_size == one.file_size
        assert found.metadata == unpack(pack(one), "made").metadata  # floats as a file holds them


def test_the_maker_refuses_a_wrong_table(maker, monkeypatch):
    monkeypatch.setitem(maker.PARAMETERS, "qwen3-8b", 8_190_735_361)
    with pytest.raises(ValueError, match="qwen3-8b would have 8190735360 weights"):
        maker.base("qwen3-8b")


def test_a_far_size_is_not_shipped(maker):
    known = {**maker.sizes()["llama-3.2-1b"], "Q4_K_M": 900_000_000}
    made = [one.quant for one in maker.headers(ENTRIES["llama-3.2-1b"], known)]
    assert "Q4_K_M" not in made
    assert "Q8_0" in made


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """A copy of the file to be damaged."""
    copy = tmp_path / shipped.FILE
    shutil.copy(paths.shipped(shipped.FILE), copy)
    monkeypatch.setattr("edgechat.base.paths.shipped", lambda name: copy)
    shipped._index.cache_clear()
    shipped._base.cache_clear()
    yield copy
    shipped._index.cache_clear()
    shipped._base.cache_clear()


@pytest.mark.parametrize("damage", ["gone", "empty", "other", "index", "part"])
def test_a_damaged_copy_says_so(damaged, damage):
    data = bytearray(damaged.read_bytes())
    if damage == "gone":
        damaged.unlink()
    elif damage == "part":
        damaged.write_bytes(data[:-60_000])
    else:
        cuts = {"empty": b"", "other": b"PK" + data[2:], "index": data[:9] + b"\xc1" + data[10:]}
        damaged.write_bytes(cuts[damage])
    with pytest.raises(ModelFileError) as caught:
        shipped_header(ENTRIES["qwen2.5-coder-0.5b"], "Q8_0")
    assert "Reinstall edgechat" in (caught.value.hint or "")


def test_looking_takes_neither_network_nor_llama():
    code = (
        "import sys; from edgechat.models.catalogue import catalogue;"
        "from edgechat.models.shipped import shipped_header;"
        "shipped_header(catalogue()[1], 'Q4_K_M');"
        "print([m for m in ('huggingface_hub', 'numpy', 'socket', 'llama_cpp') if m in sys.modules])"
    )
    top = Path(__file__).parents[2]
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=top)
    assert answer.stdout.strip() == "[]"
