"""Plans for MLX models that are here, held against what MLX really takes on this machine's processor."""

import shutil
from dataclasses import replace

import pytest

from edgechat.base.errors import BackendMissing, DoesNotFit, NotADraft
from edgechat.device.memory import Memory
from edgechat.models.formats.mlx.contents import read_model
from edgechat.planner import fallback, prepare
from edgechat.planner.estimate.budget import RAM
from edgechat.planner.fallback import refit
from edgechat.planner.listing import glances, rows
from edgechat.planner.request import PlanRequest
from tests.kit import tiny
from tests.kit.shapes import KINDS
from tests.planner.headers import cache_of, little, weights_of
from tests.planner.macs import mac

pytest.importorskip("mlx_lm")
from edgechat.engine.backends.base import BatchPart
from edgechat.engine.backends.mlx.backend import MlxBackend
from edgechat.engine.backends.mlx.caches import arrays_of
from tests.kit.mlx import mlx_pair, mlx_tiny

pytestmark = pytest.mark.slow


def made(folder, **request):
    return prepare.prepare(str(folder), PlanRequest(**request))


def fill(backend, plan, n):
    """Fill each sequence with n tokens as prompts are read; return the bytes of all caches."""
    for seq in range(plan.n_seq_max):
        for start in range(0, n, plan.n_batch):
            tokens = [5] * min(plan.n_batch, n - start)
            backend.decode([BatchPart(seq=seq, start=start, tokens=tokens, n_logits=1)])
    caches = (one for sequence in backend._sequences.values() for one in sequence.caches.all)
    # Keys and values grow by steps: what is behind the last token is taken too.
    return sum(array.nbytes for one in caches for array in whole(one))


def whole(cache):
    if not hasattr(cache, "keys"):
        return list(arrays_of(cache))
    kept = (cache.keys, cache.values)
    return [array for one in kept for array in (one if isinstance(one, list | tuple) else [one])]


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_is_what_was_planned(kind, cache_type):
    folder = mlx_tiny(kind)
    if cache_type != "f16" and read_model(folder).key_length % 64:
        with pytest.raises(DoesNotFit, match="its blocks have 64 values"):
            made(folder, context=1024, cache_type=cache_type)
        return
    plan = made(folder, context=1024, cache_type=cache_type)
    assert (plan.backend, plan.model_path, plan.devices) == ("mlx", str(folder), ())
    backend = MlxBackend(plan)
    try:
        weights = sum(one.nbytes for one in arrays(backend))
        taken = fill(backend, plan, backend.context // plan.n_seq_max)
    finally:
        backend.close()
    assert weights_of(plan) == pytest.approx(weights, rel=0.01, abs=4096)
    assert cache_of(plan) / 4 < taken <= cache_of(plan)


def arrays(backend):
    from mlx.utils import tree_flatten

    return [array for _, array in tree_flatten(backend._model.parameters())]


def test_what_was_planned_loads_again_where_it_fits(monkeypatch):
    plan = made(mlx_tiny("dense"), context=4096)
    assert refit(plan) == (plan, ())
    (ram,) = plan.memory
    assert ram.name == RAM

    def little_free(*_):
        profile = mac(16)
        return replace(profile, accelerators=(), memory=Memory(2**30, plan.total_bytes - 1))

    monkeypatch.setattr(fallback, "current_profile", little_free)
    less, told = refit(plan)
    assert told[0].startswith("Prompts are read 128 tokens at a time")
    assert less.total_bytes < plan.total_bytes
    assert less.backend == "mlx"


def test_on_a_mac_the_same_folder_goes_to_the_gpu(monkeypatch):
    monkeypatch.setattr("edgechat.planner.machine.current_profile", lambda *_: mac(16))
    plan = made(mlx_tiny("dense"), context=4096)
    assert (plan.devices, plan.gpu_layers) == (("MLX",), plan.n_layers + 1)
    assert any("on the GPU (Apple M9)" in one for one in plan.reasons)


def test_what_is_asked_for_has_to_suit_the_file():
    with pytest.raises(BackendMissing, match=r"which llama\.cpp cannot load"):
        made(mlx_tiny("dense"), backend="llama.cpp")
    with pytest.raises(BackendMissing, match="is not an MLX model"):
        made(tiny(), backend="mlx")
    assert made(tiny(), prefers="mlx").backend == "llama.cpp"
    assert made(mlx_tiny("dense"), backend="mlx").backend == "mlx"


def test_a_draft_is_a_folder_too():
    target, draft = mlx_pair(0.05, weights="4bit")
    both = made(target, draft=str(draft))
    assert both.draft is not None
    assert both.draft.model_path == str(draft)
    assert both.total_bytes > both.draft.total_bytes > 0
    with pytest.raises(NotADraft, match="it is a GGUF file, but the target is an MLX model"):
        made(target, draft=str(little()))
    with pytest.raises(NotADraft, match="they are the same model"):
        made(target, draft=str(target))


def test_a_listing_knows_them(home):
    shutil.copytree(mlx_tiny("dense", weights="4bit"), home / "data" / "models" / "Tiny-4bit")
    told = []
    (row,) = (row for row in rows(told.append) if row.model.found.format == "mlx")
    assert (row.quant, row.glance.architecture) == ("4bit", "llama")
    assert row.fits == read_model(row.model.path).context_length
    assert told == [one.model.name for one in rows()]
    assert glances([row.model], told.append) == [row.glance]  # of what was read before
    assert len(told) == len(rows())
