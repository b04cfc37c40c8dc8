"""What is left of weights after a type, against another implementation and by its own laws."""

import gguf
import numpy as np
import pytest

from edgechat.models.formats.quants import GgmlType
from edgechat.native.tensors import rounded

WEIGHTS = np.random.default_rng(3).standard_normal((2, 300, 512)).astype(np.float32)


@pytest.mark.parametrize("kind", [GgmlType.Q8_0, GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q5_0, GgmlType.Q5_1])
def test_rounding_is_that_of_the_gguf_library(kind):
    theirs = gguf.GGMLQuantizationType(int(kind))
    expected = gguf.dequantize(gguf.quantize(WEIGHTS, theirs), theirs)
    ours = rounded(WEIGHTS, kind, None, 2)
    assert float((ours == expected).mean()) > 0.999  # ties and the last bit
    np.testing.assert_allclose(ours, expected, atol=0.3)


def error(kind, importance=None):
    weight = importance[:, None, :] if importance is not None else 1.0
    return float(((rounded(WEIGHTS, kind, importance, 2) - WEIGHTS) ** 2 * weight).mean())


def test_more_bits_leave_more():
    errors = [error(kind) for kind in (GgmlType.Q2_K, GgmlType.Q3_K, GgmlType.Q4_K, GgmlType.Q5_K)]
    errors += [error(GgmlType.Q6_K), error(GgmlType.Q8_0)]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("kind", [GgmlType.Q3_K, GgmlType.Q4_K, GgmlType.Q4_0])
def test_importance_makes_important_columns_lose_less(kind):
    importance = np.ones((2, 512), np.float32)
    importance[:, ::7] = 400
    plain = rounded(WEIGHTS, kind, None, 2) - WEIGHTS
    weighed = rounded(WEIGHTS, kind, importance, 2) - WEIGHTS
    assert (weighed[:, :, ::7] ** 2).mean() < (plain[:, :, ::7] ** 2).mean()


def test_the_number_of_threads_changes_nothing():
    one, four = (rounded(WEIGHTS, GgmlType.Q4_K, None, threads) for threads in (1, 4))
    np.testing.assert_array_equal(one, four)
