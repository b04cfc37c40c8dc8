"""What is lost where vectors are stored: hardly a place in a ranking."""

import numpy as np
import numpy.typing as npt
import pytest

from edgechat.documents.embedding import packed

Vectors = npt.NDArray[np.float32]


def random_vectors(n, d):
    """Return vectors that are near each other, as those of one model's texts are."""
    generator = np.random.default_rng(7)
    vectors = generator.normal(size=(n, d)) + 3 * generator.normal(size=d)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def unpacked(data, n, d):
    """Return packed vectors (n, d), as unit vectors."""
    vectors = np.frombuffer(data, np.int8).reshape(n, d).astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def agreement(vectors, queries, stored):
    """Return the largest error of a nearness, and which share of the nearest ten are still among them."""
    exact, found = queries @ vectors.T, queries @ stored.T
    pairs = zip(np.argsort(-exact, axis=1)[:, :10], np.argsort(-found, axis=1)[:, :10], strict=True)
    kept = np.mean([len(set(one.tolist()) & set(other.tolist())) / 10 for one, other in pairs])
    return float(np.abs(exact - found).max()), float(kept)


@pytest.mark.parametrize("d", [64, 384, 768, 1024])
def test_a_byte_for_each_number_keeps_the_ranking(d):
    vectors = random_vectors(2100, d)
    data = packed(vectors[100:])
    assert len(data) == 2000 * d
    stored = unpacked(data, 2000, d)
    error, kept = agreement(vectors[100:], vectors[:100], stored)
    assert error < 0.003
    assert kept > 0.95  # what changes places is equally near, nearly


def test_records_can_be_cut_apart():
    vectors = random_vectors(5, 16)
    data = packed(vectors)
    assert packed(vectors[2:3]) == data[32:48]
    assert unpacked(data[32:48] + data[:16], 2, 16) == pytest.approx(unpacked(data, 5, 16)[[2, 0]])


def test_nothing_and_zero():
    assert unpacked(packed(np.zeros((2, 8), np.float32)), 2, 8).tolist() == [[0.0] * 8] * 2
    assert unpacked(packed(np.zeros((0, 8), np.float32)), 0, 8).shape == (0, 8)
