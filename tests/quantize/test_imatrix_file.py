"""Importance matrices as files: read back, read by others, and damaged."""

import gguf
import numpy as np
import pytest

from edgechat.base.errors import ModelFileError
from edgechat.quantize.imatrix_file import ImportanceMatrix, read_imatrix, write_imatrix


def matrix():
    random = np.random.default_rng(1)
    return ImportanceMatrix(
        squares={
            "blk.0.attn_q.weight": random.random((1, 64), np.float32),
            "blk.0.ffn_up_exps.weight": random.random((4, 32), np.float32),
        },
        counts={
            "blk.0.attn_q.weight": np.array([1024], np.float32),
            "blk.0.ffn_up_exps.weight": np.array([5, 0, 7, 100], np.float32),
        },
        dataset="a text.txt",
        n_chunks=2,
        chunk_size=512,
    )


@pytest.fixture
def file(tmp_path):
    write_imatrix(matrix(), tmp_path / "imatrix.gguf")
    return tmp_path / "imatrix.gguf"


def test_what_is_written_is_read(file):
    read, written = read_imatrix(file), matrix()
    assert (read.dataset, read.n_chunks, read.chunk_size) == ("a text.txt", 2, 512)
    for name, squares in written.squares.items():
        np.testing.assert_array_equal(read.squares[name], squares)
        np.testing.assert_array_equal(read.counts[name], written.counts[name])


def test_others_read_it(file):
    reader = gguf.GGUFReader(file)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert sorted(tensors) == [
        "blk.0.attn_q.weight.counts",
        "blk.0.attn_q.weight.in_sum2",
        "blk.0.ffn_up_exps.weight.counts",
        "blk.0.ffn_up_exps.weight.in_sum2",
    ]
    squares = matrix().squares["blk.0.ffn_up_exps.weight"]
    np.testing.assert_array_equal(tensors["blk.0.ffn_up_exps.weight.in_sum2"].data, squares)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["a text.txt"]
    assert reader.fields["imatrix.chunk_count"].contents() == 2


def test_a_quantizer_takes_means_and_ones_of_experts_that_were_never_used():
    importance = matrix().importance()["blk.0.ffn_up_exps.weight"]
    squares = matrix().squares["blk.0.ffn_up_exps.weight"]
    np.testing.assert_allclose(importance[0], squares[0] / 5)
    np.testing.assert_array_equal(importance[1], np.ones(32))
    assert importance.dtype == np.float32


def test_a_matrix_that_says_nonsense_is_refused(tmp_path):
    whole = matrix()
    infinite = {name: np.full_like(one, np.inf) for name, one in whole.squares.items()}
    other_counts = {name: np.ones(3, np.float32) for name in whole.counts}
    for squares, counts, why in (
        (infinite, whole.counts, "not finite"),
        (whole.squares, other_counts, "counts for"),
    ):
        path = tmp_path / "bad.gguf"
        write_imatrix(ImportanceMatrix(squares, counts, "text", 2, 512), path)
        with pytest.raises(ModelFileError, match=why):
            read_imatrix(path)


def test_a_truncated_file_is_refused(file):
    data = file.read_bytes()
    for length in (0, 20, len(data) // 2, len(data) - 64):
        file.write_bytes(data[:length])
        with pytest.raises(ModelFileError):
            read_imatrix(file)
