"""llama.cpp's account of a context: the same from its map and its log, dry and real."""

import sys

import pytest

from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.skeleton import write_skeleton
from edgechat.native import breakdown, logs
from edgechat.native.handles import Context, Model
from edgechat.native.params import Buffer, LoadParams, counted_once
from edgechat.planner.estimate.dry_run import DryRunQuestion
from edgechat.planner.estimate.dry_run_child import SkeletonLoader
from tests.kit import KINDS, Spec, build, tiny
from tests.kit.published import published
from tests.planner.headers import dry_run

pytestmark = pytest.mark.slow

KINDS_HERE = ("dense", "windowed", "hybrid", "moe")
ROUNDING = 16384
"""Half of what llama.cpp's log rounds to, for each of up to three lines."""

needs_map = pytest.mark.skipif(not breakdown.has_map(), reason="this llama.cpp has no such function")


@pytest.fixture(autouse=True)
def quiet():
    logs.install()
    yield
    logs.last_errors.clear()


def dry(path, ask, *, portable):
    loader = SkeletonLoader(portable=portable)
    try:
        answer = loader.answer(DryRunQuestion(str(path), ask))
    finally:
        loader.close()
    assert answer.breakdown, answer.error
    return answer.breakdown


def real(path, ask):
    model = Model(path, ask)
    context = Context(model, ask)
    try:
        return breakdown.from_map(model, context)
    finally:
        context.close()
        model.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the log is read")
def test_the_function_is_there():
    assert breakdown.has_map()


@needs_map
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_the_log_gives_the_same_as_the_map(kind, cache_type, tmp_path):
    path = build(Spec(shape=KINDS[kind].sized(head_dim=32, n_heads=2, n_embd=64), name=f"cache-{kind}"))
    write_skeleton(read_model(path), tmp_path / "a.gguf")
    ask = LoadParams(context=16384, cache_type=cache_type, n_ubatch=256)
    _same(*(dry(tmp_path / "a.gguf", ask, portable=portable) for portable in (False, True)))


@needs_map
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_the_log_gives_the_same_for_large_models(name, tmp_path):
    write_skeleton(published(name), tmp_path / "a.gguf")
    ask = LoadParams(context=32768)
    _same(*(dry(tmp_path / "a.gguf", ask, portable=portable) for portable in (False, True)))


def _same(exact, logged):
    assert (logged.output, logged.n_ctx) == (exact.output, exact.n_ctx)
    # The log does not tell repacked weights from others: both are in the machine's memory.
    assert logged.weights == exact.weights
    assert logged.cache == pytest.approx(exact.cache, abs=ROUNDING)
    assert logged.compute == pytest.approx(exact.compute, abs=ROUNDING)
    assert all(buffer.is_host for buffer in logged.buffers)


@needs_map
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_planned_against_the_real_load(kind):
    ask = LoadParams(context=4096)
    planned = dry_run(read_model(tiny(kind)), [ask])[0]
    loaded = real(tiny(kind), ask)
    assert {b.name: b for b in planned.buffers} == {
        b.name: b for b in counted_once(loaded.buffers, planned.weights)
    }
    assert (planned.output, planned.n_ctx) == (loaded.output, loaded.n_ctx)


@needs_map
def test_weights_that_are_mapped_and_repacked_count_once():
    path = build(Spec(weights="Q4_0", shape=KINDS["dense"].sized(n_embd=256, n_ff=512), name="repacked"))
    ask = LoadParams(context=512)
    planned = dry_run(read_model(path), [ask])[0]
    loaded = real(path, ask)
    assert planned.weights == pytest.approx(read_model(path).weights_bytes, abs=4096)
    assert loaded.weights >= planned.weights
    once = counted_once(loaded.buffers, planned.weights)
    assert sum(buffer.weights for buffer in once) == pytest.approx(planned.weights, abs=2**20)
    assert {buffer.name for buffer in once} == {buffer.name for buffer in planned.buffers}


def test_counting_once():
    mapped, copied = Buffer("CPU_Mapped", True, weights=500), Buffer("CPU_REPACK", True, weights=92)
    plain = Buffer("CPU", True, cache=7, compute=3)
    assert counted_once((plain, mapped, copied), 494) == (
        Buffer("CPU", True, weights=402, cache=7, compute=3),
        copied,
    )
    assert counted_once((plain, copied), 92) == (plain, copied)


def test_the_log_of_a_machine_with_two_devices():
    """As llama.cpp prints it; the blocks of a cache are shared out by its layers."""
    lines = [
        "load_tensors: layer   0 assigned to device CPU, is_swa = 0\n",
        "load_tensors: layer   1 assigned to device CUDA0, is_swa = 0\n",
        "load_tensors: layer   2 assigned to device CUDA0, is_swa = 0\n",
        "llama_kv_cache: layer   0: dev = CPU\n",
        "llama_kv_cache: layer   1: dev = CUDA0\n",
        "llama_kv_cache: size =    3.00 MiB (  4096 cells,   2 layers,  4/1 seqs), K (f16): 1.50 MiB\n",
        "llama_memory_recurrent, layer   1: dev = CUDA0\n",
        "llama_memory_recurrent: size =    1.00 MiB (     4 cells,   4 layers,  4 seqs  0 rs_seq)\n",
        "sched_reserve:      CUDA0 compute buffer size =     9.00 MiB\n",
        "sched_reserve:      CUDA0 compute buffer size =     2.00 MiB\n",
        "sched_reserve:  CUDA_Host compute buffer size =     0.50 MiB\n",
    ]
    tensors = {"token_embd.weight": 64, "blk.0.a": 32, "blk.1.a": 33, "output_norm.weight": 32}
    params = LoadParams(context=256)
    model = Model(tiny(), params)
    context = Context(model, params)
    try:
        found = breakdown.from_log(model, context, lines, tensors)
    finally:
        context.close()
        model.close()
    mib = 2**20
    assert {buffer.name: buffer for buffer in found.buffers} == {
        "CPU": Buffer("CPU", True, 96, round(1.5 * mib), 0),
        "CUDA0": Buffer("CUDA0", False, 64 + 32 + 64, round(2.5 * mib), 2 * mib, "CUDA0"),
        "CUDA_Host": Buffer("CUDA_Host", True, 0, 0, mib // 2),
    }
