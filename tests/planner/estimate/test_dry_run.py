"""The dry run: llama.cpp's figures for published models, and every way in which its process may end."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from edgechat.base.errors import DryRunFailed
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.header import GgufArray
from edgechat.native.accelerators.devices import read_inventory
from edgechat.native.params import LoadParams
from edgechat.planner.estimate import dry_run as dry_runs
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.plan import LoadPlan
from tests.kit import tiny
from tests.kit.published import published
from tests.planner.headers import dry_run
from tests.rpc_server import RpcServer

pytestmark = pytest.mark.slow

MIB = 2**20


def one(n_ctx, **more):
    """Return a question about a single sequence with one row of logits."""
    return LoadParams(context=n_ctx, **{"n_batch": 2048, "n_seq_max": 1, "n_outputs_max": 1, **more})


# (question, MiB of cache, MiB to compute with), as measured from this llama.cpp with whole headers.
KNOWN = {
    "llama-3.1-8b": [
        (one(8192, n_outputs_max=0), 1024, 266.5),
        (one(8192), 1024, 124.0),
        (one(8192, flash_attention=False), 1024, 572.0),
        (one(32768), 4096, 148.0),
        (one(32768, flash_attention=False), 4096, 2156),
        (one(131072), 16384, 244),
        (one(131072, flash_attention=False), 16384, 8492),
        (one(32768, cache_type="q8_0"), 2176, 140.1),
        (one(32768, cache_type="q8_0", n_ubatch=128), 2176, 35.1),
        (one(1000, cache_type="q4_0"), 36, 109.1),
        (one(1000), 128, 117),
    ],
    "gemma-3-12b": [
        (one(32768), 2528, 154.0),
        (one(32768, n_outputs_max=0), 2528, 527.0),
        (one(32768, n_seq_max=2, n_outputs_max=2), 2848, 155),
    ],
    "qwen3-30b-a3b": [(one(32768), 3072, 120), (one(32768, flash_attention=False), 3072, 2142)],
    "deepseek-v2-lite": [(one(32768), 972, 121), (one(32768, flash_attention=False), 972, 1174)],
}


@pytest.mark.parametrize("name", KNOWN)
def test_published_models(name):
    header = published(name)
    for (ask, cache, compute), found in zip(
        KNOWN[name], dry_run(header, [ask for ask, _, _ in KNOWN[name]]), strict=True
    ):
        assert found.cache == cache * MIB
        assert (found.compute - found.output) / MIB == pytest.approx(compute, abs=0.1)
        assert found.weights == header.weights_bytes
        assert found.output == 4 * header.vocab_size * max(ask.n_seq_max, ask.n_rows)


def test_rounding_shows():
    assert dry_run(published("llama-3.1-8b"), [one(1000)])[0].n_ctx == 1024


def test_snapshots_of_recurrent_states():
    header = read_model(tiny("hybrid"))
    few, many = dry_run(header, [LoadParams(context=1024), LoadParams(context=1024, n_rs_seq=4)])
    state = 3 * 64 * 2 * 4
    assert many.cache - few.cache == 4 * 4 * state


def test_a_question_is_what_a_plan_asks():
    plan = LoadPlan(
        model_path="a",
        model_name="a",
        context=512,
        threads=1,
        n_batch=64,
        n_ubatch=32,
        n_seq_max=3,
        n_outputs_max=5,
        n_rs_seq=2,
        devices=("CUDA0",),
        split=(7,),
        cache_type="q4_0",
        flash_attention=False,
    )
    assert LoadParams.of(plan) == LoadParams(
        context=512,
        threads=1,
        cache_type="q4_0",
        n_batch=64,
        n_ubatch=32,
        n_seq_max=3,
        n_outputs_max=5,
        n_rs_seq=2,
        devices=("CUDA0",),
        split=(7,),
        flash_attention=False,
    )


@pytest.fixture
def run():
    with DryRun() as run:
        run.show(read_model(tiny()))
        yield run


def pid_of(run):
    assert run._child is not None
    return run._child.pid


def failure(run, ask):
    with pytest.raises(DryRunFailed) as caught:
        run.ask(ask)
    return caught.value.message


def test_what_llama_cpp_refuses_it_explains_and_goes_on(run):
    assert "context" in failure(run, LoadParams(context=512, cache_type="q4_0", flash_attention=False))
    assert run.ask(LoadParams(context=512)).n_ctx == 512


def test_an_abort_is_told_with_its_reason(run):
    """More sequences than rows of logits: an assertion of llama.cpp."""
    message = failure(run, LoadParams(context=512, n_outputs_max=1))
    assert "died" in message
    assert "GGML_ASSERT" in message
    assert "died" in failure(run, LoadParams(context=1024))


def test_killed(run):
    known = run.ask(LoadParams(context=512))
    os.kill(pid_of(run), signal.SIGTERM)
    assert "died" in failure(run, LoadParams(context=1024))
    assert "died" in failure(run, LoadParams(context=2048))
    assert run.ask(LoadParams(context=512)) == known


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="cannot stop a process")
def test_hung(run, monkeypatch):
    run.ask(LoadParams(context=512))
    pid = pid_of(run)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(dry_runs, "TIME_LIMIT", 0.5)
    assert "still running" in failure(run, LoadParams(context=1024))
    assert not psutil.pid_exists(pid)


@pytest.mark.fresh
def test_grown(run, monkeypatch):
    monkeypatch.setattr(dry_runs, "MEMORY_LIMIT", 2**20)
    assert "MiB of memory" in failure(run, LoadParams(context=1024))


def test_that_cannot_be_started(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(dry_runs, "Child", refuse)
    with DryRun() as run:
        run.show(read_model(tiny()))
        assert "no more processes" in failure(run, LoadParams(context=512))


def test_nothing_is_left_behind(run):
    folder, pid = Path(run._folder.name), pid_of(run)
    run.ask(LoadParams(context=512))
    assert sorted(path.name for path in folder.iterdir()) == ["log", "skeleton-1.gguf"]
    run.close()
    assert not folder.exists()
    assert not psutil.pid_exists(pid)
    assert "ended" in failure(run, LoadParams(context=1024))


@pytest.mark.quick
def test_another_model_in_the_same_life(run):
    first = run.ask(LoadParams(context=512))
    run.show(read_model(tiny("moe")))
    assert run.ask(LoadParams(context=512)).weights == read_model(tiny("moe")).weights_bytes != first.weights


def test_devices_are_listed_by_the_same_process(run, servers):
    pid = pid_of(run)
    before = run.ask(LoadParams(context=512))
    addresses = tuple(server.address for server in servers)
    found = run.inventory(addresses)
    assert [(one.kind, one.free) for one in found.devices if one.backend == "RPC"] == [
        ("gpu", server.memory) for server in servers
    ]
    assert run.inventory() == read_inventory()
    assert run.ask(LoadParams(context=512, n_batch=256)).weights == before.weights
    assert pid_of(run) == pid


def test_devices_without_a_model():
    with DryRun() as run:
        assert run.inventory().devices
    with pytest.raises(DryRunFailed, match="it has ended"):
        run.inventory()


def test_a_server_is_free_again_after_each_answer(run, servers):
    """It would serve nobody else, not the worker that loads what was planned."""
    addresses = tuple(server.address for server in servers)
    for split in ((1, 1), (2, 1)):
        ask = LoadParams(context=512, devices=("RPC0", "RPC1"), split=split, rpc=addresses)
        assert {buffer.device for buffer in run.ask(ask).buffers} == {"CPU", "RPC0", "RPC1"}
        assert read_inventory(rpc=addresses).devices


def test_a_server_that_is_gone(run):
    with RpcServer(2**20) as server:
        addresses = (server.address,)
        assert run.inventory(addresses)
    ask = LoadParams(context=512, devices=("RPC0",), split=(1,), rpc=addresses)
    assert f"No llama.cpp server answers at {server.address}" in failure(run, ask)
    with pytest.raises(DryRunFailed, match=r"No llama\.cpp server answers"):
        run.inventory(addresses)
    assert run.ask(LoadParams(context=512))
    assert run.inventory()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"llama.embedding_length": 0}, "'token_embd.weight' has wrong shape"),
        ({"llama.attention.head_count": 0}, "'blk.0.attn_q.weight' has wrong shape"),
        ({"llama.block_count": 2**31 - 1}, "its process died"),
        ({"llama.context_length": 2**64 - 1}, "wrong type u64"),
        ({"llama.attention.head_count_kv": GgufArray("uint32", 3, (0, 2**32 - 1, 1))}, "wrong array length"),
        ({"llama.rope.dimension_count": -1}, "wrong type i32"),
        ({"llama.expert_count": 2**32 - 1}, "its process died"),
        ({"llama.vocab_size": "many"}, "no valid number for 'vocab_size'"),
        ({"llama.vocab_size": 2**31 - 1}, "vocabulary|its process died"),
        ({"general.architecture": "nonesuch"}, "'nonesuch.vocab_size' is missing"),
        ({"llama.odd": GgufArray("uint64", 10**6, None)}, "'llama.odd' is a list of 1000000"),
    ],
)
def test_odd_shapes_end_in_an_error(entry, why):
    """Whatever native code makes of them, this process lives, and says so."""
    header = read_model(tiny())
    metadata = {key: value for key, value in header.metadata.items() if "tokens" not in key} | entry
    metadata.setdefault("llama.vocab_size", 259)
    with pytest.raises(DryRunFailed, match=why):
        dry_run(replace(header, metadata=metadata), [LoadParams(context=512)])
