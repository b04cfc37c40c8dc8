"""The importance matrix of kit models: against numpy where the input is known, and by counting."""

import gguf
import numpy as np
import pytest

from edgechat.native.params import LoadParams
from edgechat.native.quantization import ActivationSums, TextReader
from tests.kit import tiny

TEXT = "".join(f"Sentence number {n} says nothing, at some length. " for n in range(40))
CHUNK = 128
LOAD = LoadParams(context=CHUNK, n_batch=CHUNK, n_ubatch=CHUNK, n_seq_max=1, n_outputs_max=CHUNK)


def sums_of(model, chunks=3):
    sums = ActivationSums()
    with TextReader(model, LOAD, on_operation=sums.on_operation) as reader:
        read = reader.chunks(TEXT, CHUNK)[:chunks]
        for chunk in read:
            reader.logits(chunk, CHUNK)
    assert sums.failure is None
    return sums, read


def test_the_input_of_the_first_layer_is_what_numpy_computes():
    model = tiny("dense", weights="F32")
    sums, chunks = sums_of(model)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(model).tensors}
    x = np.concatenate([tensors["token_embd.weight"][chunk] for chunk in chunks]).astype(np.float64)
    x /= np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)
    x *= tensors["blk.0.attn_norm.weight"]
    expected = (x**2).sum(0)
    for name in ("attn_q", "attn_k", "attn_v"):
        squares = sums.squares[f"blk.0.{name}.weight"]
        assert squares.shape == (1, 64)
        np.testing.assert_allclose(squares[0], expected, rtol=1e-3)
        assert sums.counts[f"blk.0.{name}.weight"].tolist() == [3 * CHUNK]


@pytest.mark.parametrize("kind", ["dense", "qwen3", "windowed", "hybrid"])
def test_every_layer_is_counted_once_for_each_token(kind):
    sums, _ = sums_of(tiny(kind))
    names = {name.split(".", 2)[2] for name in sums.squares}
    assert {"ffn_up.weight", "ffn_down.weight"} <= names
    assert not any("norm" in name for name in names)
    assert all(name.startswith("blk.") for name in sums.squares)
    assert {count for counts in sums.counts.values() for count in counts.tolist()} == {3 * CHUNK}


def test_each_expert_is_counted_by_itself():
    sums, _ = sums_of(tiny("moe"))
    squares, counts = sums.squares["blk.0.ffn_up_exps.weight"], sums.counts["blk.0.ffn_up_exps.weight"]
    assert squares.shape == (8, 64)
    assert int(counts.sum()) == 2 * 3 * CHUNK  # two experts for each token
    assert ((squares.sum(1) > 0) == (counts > 0)).all()
    # All experts of a token see the same: they add up to the sums of the router, for two experts each.
    total = squares.sum(0)
    np.testing.assert_allclose(total, 2 * sums.squares["blk.0.ffn_gate_inp.weight"][0], rtol=1e-3)
