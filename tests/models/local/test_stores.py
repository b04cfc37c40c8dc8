"""A model's fingerprint goes with what is in its file, and with nothing else."""

import os
import random

import pytest

from edgechat.models.local.stores import fingerprint_of

SIZE = 8 << 20


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(random.Random(1).randbytes(SIZE))
    return path


def changed(model, at, what=b"a fine-tune"):
    other = model.with_name("other.gguf")
    raw = bytearray(model.read_bytes())
    raw[at : at + len(what)] = what
    other.write_bytes(raw)
    return other


def test_name_place_and_time_do_not_count(model, tmp_path):
    before = fingerprint_of(model, "q8_0")
    assert len(before) == 32
    assert fingerprint_of(str(model), "q8_0") == before
    (tmp_path / "elsewhere").mkdir()
    moved = model.rename(tmp_path / "elsewhere" / "sha256-0123")
    os.utime(moved, (1, 1))
    assert fingerprint_of(moved, "q8_0") == before
    link = tmp_path / "link.gguf"
    link.symlink_to(moved)
    assert fingerprint_of(link, "q8_0") == before


def test_how_it_is_computed_counts(model):
    assert fingerprint_of(model, "q8_0") != fingerprint_of(model, "f16")


@pytest.mark.parametrize("at", [0, (1 << 20) - 11, SIZE - (1 << 20), SIZE - 11, SIZE * 31 // 63])
def test_what_is_looked_at_counts(model, at):
    assert fingerprint_of(changed(model, at), "") != fingerprint_of(model, "")


@pytest.mark.slow
def test_one_changed_tensor_between_counts(model):
    tensor = random.Random(2).randbytes(SIZE // 50)
    for at in range(1 << 20, SIZE - (2 << 20), 333_333):
        assert fingerprint_of(changed(model, at, tensor), "") != fingerprint_of(model, ""), at


def test_the_length_counts(model):
    model.write_bytes(bytes(SIZE))
    longer = model.with_name("longer.gguf")
    longer.write_bytes(bytes(SIZE + 1))
    assert fingerprint_of(longer, "") != fingerprint_of(model, "")


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, (1 << 20) + 1])
def test_small_files_count_whole(tmp_path, size):
    path = tmp_path / "small.gguf"
    path.write_bytes(bytes(size))
    before = fingerprint_of(path, "")
    for at in range(0, size, max(1, size // 7)):
        assert fingerprint_of(changed(path, at, b"!"), "") != before


def test_all_parts_of_a_split_model_count(tmp_path):
    def split(folder, stem, *parts):
        (tmp_path / folder).mkdir(exist_ok=True)
        paths = [
            tmp_path / folder / f"{stem}-{i:05}-of-{len(parts):05}.gguf" for i in range(1, len(parts) + 1)
        ]
        for path, raw in zip(paths, parts, strict=True):
            path.write_bytes(raw)
        return paths[0]

    before = fingerprint_of(split("a", "model", b"one", b"two", b"three"), "")
    assert fingerprint_of(split("b", "renamed", b"one", b"two", b"three"), "") == before
    assert fingerprint_of(split("c", "model", b"one", b"two", b"other"), "") != before
    assert fingerprint_of(split("d", "model", b"two", b"one", b"three"), "") != before
    assert fingerprint_of(split("e", "model", b"onetwothree"), "") != before


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        fingerprint_of(tmp_path / "none.gguf", "")
