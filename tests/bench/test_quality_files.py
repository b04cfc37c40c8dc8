"""Files of a measurement: llama.cpp's base files, and the scores that are kept."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edgechat.base.errors import BadRequest, DiskError
from edgechat.bench import quality_files
from edgechat.bench.divergence import coded
from edgechat.bench.quality_files import (
    BaseFile,
    BaseFileWriter,
    ScoreFile,
    drop_oldest,
    read_text,
    score_path,
    scored,
    shipped_text,
)

N_CTX, N_VOCAB, N_CHUNKS = 16, 33, 3
POOL = ThreadPoolExecutor(1)


@pytest.fixture
def base(tmp_path):
    random = np.random.default_rng(1)
    tokens = random.integers(0, N_VOCAB, (N_CHUNKS, N_CTX)).astype(np.int32)
    writer = BaseFileWriter(tmp_path / "base", tokens, N_VOCAB)
    for _ in range(N_CHUNKS):
        writer.write(coded(random.normal(0, 3, (scored(N_CTX), N_VOCAB)).astype(np.float32), POOL))
    assert not (tmp_path / "base").exists()
    writer.finish()
    return tmp_path / "base"


def test_a_base_file_is_read_as_it_was_written(base):
    found = BaseFile(base)
    assert (found.n_ctx, found.n_vocab, found.n_chunks) == (N_CTX, N_VOCAB, N_CHUNKS)
    random = np.random.default_rng(1)
    assert (found.tokens == random.integers(0, N_VOCAB, (N_CHUNKS, N_CTX))).all()
    for chunk in range(N_CHUNKS):
        rows = coded(random.normal(0, 3, (scored(N_CTX), N_VOCAB)).astype(np.float32), POOL)
        assert (found.rows(chunk, 0, scored(N_CTX)) == rows).all()
        assert (found.rows(chunk, 2, 3) == rows[2:5]).all()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"GGUF" + data[4:], "not a base file"),
        (lambda data: data[:10], "not a base file"),
        (lambda data: data[:-2], "is incomplete"),
        (lambda data: data[:8] + b"\xff\xff\xff\x7f" + data[12:], "makes no sense"),
        (lambda data: data[:12] + b"\0\0\0\0" + data[16:], "makes no sense"),
        (lambda data: data[:20] + b"\x21\0\0\0" + data[24:], "not in its vocabulary"),
        (lambda data: data[:20] + b"\xff\xff\xff\xff" + data[24:], "not in its vocabulary"),
    ],
)
def test_a_damaged_base_file_is_refused(base, damage, said):
    base.write_bytes(damage(base.read_bytes()))
    with pytest.raises(BadRequest, match=said):
        BaseFile(base)


def test_a_base_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadRequest, match="nowhere"):
        BaseFile(tmp_path / "nowhere")
    with pytest.raises(DiskError, match="base"):
        BaseFileWriter(tmp_path / "nowhere" / "base", np.zeros((1, 8), np.int32), 9)


def test_a_base_file_that_does_not_fit_is_not_begun(tmp_path):
    tokens = np.broadcast_to(np.int32(0), (1 << 20, 512))
    with pytest.raises(DiskError, match=r"needs .*, but only .* is free"):
        BaseFileWriter(tmp_path / "base", tokens, 1 << 22)
    assert not list(tmp_path.iterdir())


def test_scores_are_kept_chunk_by_chunk(tmp_path):
    file = ScoreFile(tmp_path / "a.scores", 5)
    assert (file.n_chunks, file.tokens_per_second) == (0, 0)
    assert file.scores().shape == (4, 0)
    file.begin(12.5)
    chunks = np.random.default_rng(2).random((3, 4, 5)).astype(np.float32)
    for chunk in chunks:
        file.append(chunk)
    again = ScoreFile(tmp_path / "a.scores", 5)
    assert (again.n_chunks, again.tokens_per_second) == (3, 12.5)
    assert (again.scores() == np.concatenate(list(chunks), axis=1)).all()
    assert (again.scores(2) == np.concatenate(list(chunks[:2]), axis=1)).all()


@pytest.mark.parametrize("lost", [1, 79, 81])
def test_what_was_not_written_to_its_end_is_written_again(tmp_path, lost):
    path = tmp_path / "a.scores"
    file = ScoreFile(path, 5)
    file.begin(1.0)
    chunks = np.random.default_rng(2).random((3, 4, 5)).astype(np.float32)
    for chunk in chunks:
        file.append(chunk)
    os.truncate(path, path.stat().st_size - lost)
    n_left = 2 if lost < 81 else 1
    assert file.n_chunks == n_left
    for chunk in chunks[n_left:]:
        file.append(chunk)
    assert (file.scores() == np.concatenate(list(chunks), axis=1)).all()


def test_names_tell_everything_apart_that_scores_depend_on():
    assert score_path(b"ab", b"c") != score_path(b"a", b"bc")
    assert score_path(b"a") == score_path(b"a")


def test_the_oldest_scores_go(monkeypatch):
    monkeypatch.setattr(quality_files, "_MOST_FILES", 2)
    files = [score_path(bytes([at])) for at in range(4)]
    for at, path in enumerate(files):
        ScoreFile(path, 5).begin(1.0)
        os.utime(path, (at, at))
    drop_oldest()
    assert [path.exists() for path in files] == [False, False, True, True]


def test_the_text_that_ships_has_many_languages_code_and_chats():
    shipped = read_text(shipped_text())
    assert len(shipped.encode()) > 200_000
    for part in ("Menschen", "Elizabeth", "权利", "def ", "Assistant:"):
        assert part in shipped
    # A measurement of the default length sees all of it.
    beginning = shipped[: 64 * 512 * 3]
    assert all(part in beginning for part in ("Assistant:", "def ", "Art", "Mr. "))


def test_a_text_loses_the_newline_at_its_end_as_in_llama_cpp(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("früh\n\n".encode() + b"\xff\n")
    assert read_text(path) == "früh\n\n\ufffd"


def test_what_is_no_text_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "text"
    with pytest.raises(BadRequest, match="cannot be read"):
        read_text(path)
    path.write_bytes(b"GGUF\0\0\0")
    with pytest.raises(BadRequest, match="not a text file"):
        read_text(path)
    monkeypatch.setattr(quality_files, "_MOST_BYTES", 4)
    with pytest.raises(BadRequest, match="more than 4 bytes"):
        read_text(path)
