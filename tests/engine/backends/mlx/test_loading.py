"""Folders that hold no model, or not a whole one, end in words and never in a crash."""

import os

import mlx.core as mx
import pytest

from edgechat.base.errors import EdgechatError, LoadFailed, ModelFileError, OutOfMemory
from edgechat.engine.backends.base import BatchPart
from edgechat.engine.backends.mlx import folder as loading
from edgechat.engine.backends.mlx.backend import MlxBackend
from edgechat.engine.backends.mlx.caches import CacheLayers
from tests.engine.runtimes import plan
from tests.kit import mlx_corrupt
from tests.kit.build import Spec
from tests.kit.mlx import mlx_build, mlx_tiny
from tests.kit.shapes import KINDS


@pytest.mark.parametrize("damage", mlx_corrupt.ALL)
def test_a_damaged_folder_is_refused(damage, tmp_path):
    broken = mlx_corrupt.ALL[damage](mlx_tiny("dense"), tmp_path / "broken")
    with pytest.raises((LoadFailed, ModelFileError)) as caught:
        MlxBackend(plan(broken))
    assert isinstance(caught.value, EdgechatError)
    assert caught.value.message.strip()
    assert len(caught.value.message) < 500
    assert not (broken / "ran").exists()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("[malloc] Unable to allocate 17592186044416 bytes.", OutOfMemory),
        (
            "[metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum "
            "allowed buffer size of 30150672384 bytes.",
            OutOfMemory,
        ),
        ("[metal::malloc] Resource limit (499000) exceeded.", OutOfMemory),
        (
            "[METAL] Command buffer execution failed: Insufficient Memory "
            "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            OutOfMemory,
        ),
        ("Received 1 parameters not in model: model.memory.malloc.weight.", LoadFailed),
        ("Model type memory not supported.", LoadFailed),
        ("[load_safetensors] Tensor '[malloc] Unable to allocate 1 bytes.' is cut short", LoadFailed),
    ],
)
def test_too_little_memory_is_known_by_whole_messages(words, kind):
    with pytest.raises(LoadFailed) as caught, loading.load_errors("a model"):
        raise RuntimeError(words)
    assert type(caught.value) is kind


def test_progress_is_told_up_to_the_end():
    told = []
    MlxBackend(plan(mlx_tiny("dense")), told.append).close()
    assert told[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("weights", ["F16", "BF16", "4bit", "8bit", "6bit", "mxfp4"])
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_every_type_of_weights_computes(weights, cache_type, opened):
    shape = KINDS["dense"].sized(n_embd=128, n_ff=256, n_heads=2, n_kv_heads=1)
    folder = mlx_build(Spec(shape=shape, weights=weights, name="types"))
    backend = opened(MlxBackend(plan(folder, cache_type=cache_type)))
    (row,) = backend.decode([BatchPart(0, 0, [70, 71, 72], 1)])
    assert abs(float(row.std())) > 0.01
    assert mx.isfinite(mx.array(row)).all().item()
    assert backend.n_params > 50_000


def test_a_cache_of_an_unknown_kind_is_refused():
    class Odd:
        layers = ()

        def make_cache(self):
            return [object()]

    with pytest.raises(LoadFailed, match="does not support") as caught:
        CacheLayers(Odd(), "f16")
    assert "--backend llama.cpp" in str(caught.value.hint)


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_a_folder_that_may_not_be_read(tmp_path):
    with pytest.raises(ModelFileError):
        MlxBackend(plan(tmp_path / "nowhere"))
