"""Every way in which a file can be wrong, and what the reader says to it."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.gguf import MAX_TAIL, one_model, parse_header, read_header, read_model
from edgechat.models.formats.quants import REFUSED
from tests.kit import Spec, corrupt, tiny
from tests.kit.build import write
from tests.models.raw import ARCHITECTURE, entry, gguf, strings, tensor, text, u32, u64


def parse(data, file_size=None):
    return parse_header(data, len(data) if file_size is None else file_size, "x.gguf")


def refusal(data, file_size=None):
    """Return what the reader says to a bad file; the hint must say something too."""
    with pytest.raises(ModelFileError) as caught:
        parse(data, file_size)
    assert caught.value.hint
    assert "x.gguf" in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("magic", "says"),
    [
        (b"GGUX", "begins with b'GGUX'"),
        (b"\x1b[2J", r"begins with b'\x1b[2J'"),
        (b"PK\x03\x04", "PyTorch"),
        (b"lmgg", "2023"),
        (b"vers", "Git LFS"),
        (b"<!do", "web page"),
    ],
)
def test_wrong_magic(magic, says, tmp_path):
    path = corrupt.wrong_magic(tiny(), tmp_path / "x.gguf", magic)
    with pytest.raises(ModelFileError) as caught:
        read_header(path)
    assert "x.gguf is not a GGUF file" in caught.value.message
    assert says in caught.value.message


def test_wrong_versions():
    assert "big-endian" in refusal(gguf(version=0x03000000))
    assert "big-endian" in refusal(gguf(version=0x02000000))
    assert "version 1" in refusal(gguf(version=1))
    assert "version 4" in refusal(gguf(version=4))
    assert "version 4294967295" in refusal(gguf(version=0xFFFFFFFF))


def test_what_is_no_file(tmp_path):
    with pytest.raises(ModelFileError, match="does not exist"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="is a folder"):
        read_header(tmp_path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_header(Path("a\0b"))
    empty = tmp_path / "empty.gguf"
    empty.touch()
    with pytest.raises(ModelFileError, match="is empty"):
        read_header(empty)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        read_header(tmp_path / "pipe.gguf")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match="Permission denied"):
        read_header(tiny())


def test_a_cut_file_says_how_much_is_missing(tmp_path):
    """Cut in its header, it says how much at least; cut in the weights, how much."""
    path, out = tiny(), tmp_path / "x.gguf"
    size = path.stat().st_size
    for keep in (1, 3, 4, 7, 8, 23, 24, 100, 5000):
        with pytest.raises(ModelFileError, match=r"truncated: at least \d+ bytes"):
            read_header(corrupt.truncated(path, out, keep=keep))
    for missing in (1, 32, 1000):
        with pytest.raises(ModelFileError, match=f"{missing} of its {size} bytes are missing"):
            read_header(corrupt.truncated(path, out, keep=-missing))


BAD_HEADERS = {
    "tensors beyond reason": (gguf(n_tensors=2**64 - 1), "claims 18446744073709551615 tensors"),
    "tensors beyond the file": (gguf(n_tensors=16_000), "bytes are missing"),
    "entries beyond reason": (gguf(n_entries=2**63), "metadata entries"),
    "entries beyond the file": (gguf(n_entries=60_000), "bytes are missing"),
    "key longer than the file": (gguf([u64(60_000) + bytes(99)]), "truncated"),
    "key beyond reason": (gguf([u64(2**63) + bytes(99)]), "a string of 9223372036854775808 bytes"),
    "key without a name": (gguf([entry("", 1)]), "has no name"),
    "key that is no text": (gguf([entry(b"\xff\xfe", 1)]), "is not UTF-8"),
    "key twice": (gguf([entry("a", 1), entry("a", 2)]), "'a' appears twice"),
    "key with escapes twice": (gguf([entry("\x1b[2J", 1)] * 2), r"'\x1b[2J' appears twice"),
    "text beyond reason": (gguf([text("a") + u32(8) + u64(2**40)]), "a string of"),
    "value of no type": (
        gguf([entry("a", u32(13) + bytes(8))]),
        "the metadata entry 'a' has the unknown type 13",
    ),
    "array of no type": (gguf([entry("a", u32(9) + u32(99) + u64(1) + bytes(8))]), "the unknown type 99"),
    "array of arrays": (gguf([entry("a", u32(9) + u32(9) + u64(1) + bytes(20))]), "array of arrays"),
    "array longer than the file": (gguf([entry("a", u32(9) + u32(12) + u64(2**60))]), "truncated"),
    "strings beyond reason": (gguf([entry("a", u32(9) + u32(8) + u64(2**60))]), "strings in 'a'"),
    "strings beyond the file": (gguf([entry("a", u32(9) + u32(8) + u64(10**6))]), "bytes are missing"),
    "string in an array too long": (
        gguf([entry("a", u32(9) + u32(8) + u64(1025) + u64(2**62) + bytes(9000))]),
        "truncated",
    ),
    "alignment of 0": (gguf([entry("general.alignment", 0)]), "alignment of 0"),
    "alignment of 32768": (gguf([entry("general.alignment", 1 << 15)]), "alignment of 32768"),
    "alignment of 48": (gguf([entry("general.alignment", 48)]), "alignment of 48"),
    "alignment beyond reason": (gguf([entry("general.alignment", 2**30)]), "alignment of"),
    "alignment in words": (gguf([entry("general.alignment", "32")]), "alignment is not a number"),
    "tensor of five dimensions": (gguf(tensors=[tensor("a", (1,) * 5)], data=64), "5 dimensions"),
    "tensor of a million dimensions": (
        gguf(tensors=[text("a") + u32(10**6) + bytes(40)], data=64),
        "1000000 dimensions",
    ),
    "tensor of nothing": (gguf(tensors=[tensor("a", (32, 0))], data=64), "cannot be [32, 0]"),
    "tensor of everything": (gguf(tensors=[tensor("a", (2**32, 2**32))], data=64), "cannot be"),
    "tensor of half a block": (gguf(tensors=[tensor("a", (33,), 8)], data=64), "[33] in Q8_0"),
    "tensor in no block": (gguf(tensors=[tensor("a", (), 8)], data=64), "[] in Q8_0"),
    "tensor with a long name": (gguf(tensors=[tensor("a" * 64)], data=128), "a string of 64 bytes"),
    "tensor twice": (
        gguf(tensors=[tensor("a"), tensor("a", offset=128)], data=256),
        "the tensor 'a' appears twice",
    ),
    "tensors that overlap": (
        gguf(tensors=[tensor("a"), tensor("b", offset=96)], data=256),
        "the tensor 'b' is at 96 instead of 128",
    ),
    "tensors with a gap": (
        gguf(tensors=[tensor("a"), tensor("b", offset=160)], data=512),
        "the tensor 'b' is at 160 instead of 128",
    ),
    "tensor off its alignment": (gguf(tensors=[tensor("a", offset=1)], data=256), "is at 1"),
    "tensors beyond any disk": (
        gguf(tensors=[tensor("a", (2**61,)), tensor("b", (2**61,), offset=2**63)], data=64),
        "impossibly large",
    ),
    "tensor beyond the file": (
        gguf(tensors=[tensor("a", (100,))], data=399),
        "1 of its 528 bytes are missing",
    ),
    "tensor of an unknown type": (gguf(tensors=[tensor("a", kind=99)], data=128), "type (99)"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_bad_headers(name):
    data, says = BAD_HEADERS[name]
    assert says in refusal(data)


@pytest.mark.parametrize("number", REFUSED)
def test_types_that_no_model_uses(number):
    message = refusal(gguf(tensors=[tensor("a", (256,), number)], data=4096))
    assert REFUSED[number] in message


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("blk.0.ffn_norm.weight", (32,), 1),
        ("blk.0.attn_q_norm.weight", (32, 2), 8),
        ("blk.0.attn_q.bias", (32,), 30),
        ("blk.0.attn_q.weight", (32, 32), 26),
    ],
)
def test_types_that_crash_where_they_stand(name, shape, kind):
    """Each of them passes llama.cpp's loader and ends the process that computes with it."""
    assert f"'{name}' in" in refusal(gguf(tensors=[tensor(name, shape, kind)], data=4096))


def test_a_table_of_indices_is_taken():
    name = "blk.0.ffn_gate_tid2eid.weight"
    assert parse(gguf(tensors=[tensor(name, (8, 4), 26)], data=128)).tensors[0].name == name


def test_f64_is_refused_before_it_can_crash_decode(tmp_path):
    with pytest.raises(ModelFileError, match=r"'blk.0.ffn_norm.weight' in F64"):
        read_model(corrupt.f64_tensor(tmp_path / "x.gguf"))


def test_many_strings_in_many_arrays_are_counted_together():
    words = u32(9) + u32(8) + u64(1_500_000) + bytes(8 * 1_500_000)
    assert "strings in 'b'" in refusal(gguf([entry("a", words), entry("b", words)]))


def test_text_is_kept_within_bounds(monkeypatch):
    monkeypatch.setattr("edgechat.models.formats.gguf.MAX_KEPT", 100)
    assert "a string of 60 bytes exceeds the limit of 40" in refusal(
        gguf([entry("a", "x" * 60), entry("b", "x" * 60)])
    )


def test_a_header_without_end_is_not_followed():
    """A file of a terabyte that claims a string of half of it: nothing near that is asked for."""
    data = gguf([entry("a", u32(9) + u32(0) + u64(2**39))])
    assert "larger than 128 MiB" in refusal(data, file_size=2**40)


def test_a_large_hole_is_quick(tmp_path):
    head = gguf([entry("a", u32(9) + u32(8) + u64(2_000_000))], n_entries=2)
    path = tmp_path / "x.gguf"
    path.write_bytes(head)
    path = corrupt.sparse(path, tmp_path / "y.gguf", size=1 << 34)
    start = time.process_time()
    with pytest.raises(ModelFileError):
        read_header(path)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("kind", ["dense", "vocabulary"])
def test_what_follows_the_last_tensor_is_bounded(tmp_path, kind):
    """Loaders map a file to its end: a hole of a terabyte would be read, and is nothing on the disk."""
    path = tmp_path / "x.gguf"
    path.write_bytes(tiny().read_bytes() if kind == "dense" else gguf())
    end = read_header(path).end
    assert end == path.stat().st_size
    whole = corrupt.sparse(path, tmp_path / "y.gguf", size=end + MAX_TAIL)
    assert read_header(whole).tensors == read_header(path).tensors
    for size, beyond in ((end + MAX_TAIL + 1, "1 MiB"), (1 << 40, "1024.0 GiB")):
        with pytest.raises(ModelFileError, match=f"has {beyond} of data after its last tensor"):
            read_model(corrupt.sparse(path, tmp_path / "y.gguf", size=size))


def test_a_hole_in_a_later_part_is_found(tmp_path):
    write(Spec(), tmp_path / "m.gguf", split_max_tensors=8)
    first, *_, last = sorted(tmp_path.glob("m-*.gguf"))
    corrupt.sparse(last, last, size=1 << 36)
    with pytest.raises(ModelFileError, match=f"{last.name} .*64.0 GiB of data after its last tensor"):
        read_model(first)


def rows(n, layers):
    """Return a model of n tensors, each as small as can be."""
    said = [] if layers is None else [entry("llama.block_count", layers)]
    table = [tensor(f"t{i}", (1,), offset=32 * i) for i in range(n)]
    return gguf([ARCHITECTURE, *said], table, data=32 * n)


@pytest.mark.parametrize(
    ("layers", "most"), [(0, 256), (1, 320), (2, 384), (256, 16_640), (512, 16_640), (None, 16_640)]
)
def test_tensors_are_bounded_by_layers(layers, most):
    assert len(parse(rows(most, layers)).tensors) == most
    assert str(most + 1) in refusal(rows(most + 1, layers))


def test_tensors_of_all_parts_are_counted_together():
    parts = [replace(parse(rows(200, 1)), metadata={**parse(rows(1, 1)).metadata, "split.count": 900})]
    taken = []

    def coming():
        for i in range(900):
            taken.append(i)
            yield replace(parts[0], metadata=parts[0].metadata | {"split.no": i})

    with pytest.raises(ModelFileError, match="400 tensors are too many for 1 layers"):
        one_model(coming())
    assert taken == [0, 1], "the others are not even read"


# Properties of odd headers


def header_of(**values):
    entries = [entry("llama." + key.replace("__", "."), value) for key, value in values.items()]
    return parse(gguf([ARCHITECTURE, *entries]))


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda: parse(gguf([])).architecture, "'general.architecture' is missing"),
        (lambda: header_of().n_layers, "'llama.block_count' is missing"),
        (lambda: header_of(block_count=0).n_layers, "says it has 0 layers"),
        (lambda: header_of(block_count=100_000).n_layers, "says it has 100000 layers"),
        (lambda: header_of(block_count="three").n_layers, "no valid number for 'block_count'"),
        (lambda: header_of(context_length=2**32 - 1).context_length, "no valid number"),
        (lambda: header_of(context_length=1.5).context_length, "no valid number"),
        (lambda: header_of(block_count=3, attention__head_count=strings(["a"])).heads, "lists 1"),
        (lambda: header_of(block_count=1, attention__head_count=strings(["a"])).heads, "no valid"),
    ],
)
def test_shapes_that_make_no_sense(read, says):
    with pytest.raises(ModelFileError) as caught:
        read()
    assert says in caught.value.message


def test_no_heads_divide_nothing():
    header = header_of(block_count=1, embedding_length=64, attention__head_count=0)
    assert header.key_length == 64
