"""Layers on devices: they land where the parameters say, and take there what the dry run says.

The devices are RPC servers on this machine, which llama.cpp treats as GPUs.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from edgechat.base.errors import LoadFailed, OutOfMemory
from edgechat.models.formats.gguf import read_model
from edgechat.models.formats.skeleton import write_skeleton
from edgechat.native import breakdown, logs
from edgechat.native.accelerators.devices import inventory
from edgechat.native.accelerators.placement import experts_of_first
from edgechat.native.handles import Context, Model
from edgechat.native.params import LoadParams, counted_once
from edgechat.planner.estimate.dry_run import DryRunQuestion
from edgechat.planner.estimate.dry_run_child import SkeletonLoader
from tests.kit import KINDS, Spec, build, tiny
from tests.kit.build import write
from tests.kit.layers import layer_devices
from tests.kit.published import published
from tests.kit.shapes import tensors
from tests.rpc_server import RpcServer

pytestmark = pytest.mark.slow

MIB = 2**20
ROUNDING = 3 * 16384
"""Of what llama.cpp's log prints: 0.01 MiB, for each of some lines."""

Servers = tuple[RpcServer, RpcServer]
needs_map = pytest.mark.skipif(not breakdown.has_map(), reason="this llama.cpp has no such function")


class Split(NamedTuple):
    devices: tuple[str, ...]
    layers: tuple[int, ...]
    experts_in_ram: int = 0


SPLITS = {
    "processor": Split((), ()),
    "output alone": Split(("RPC1",), (1,)),
    "one device": Split(("RPC0",), (2,)),
    "two devices": Split(("RPC0", "RPC1"), (1, 1)),
    "other order": Split(("RPC1", "RPC0"), (2, 1)),
    "one of them without layers": Split(("RPC0", "RPC1"), (0, 2)),
}
KINDS_HERE = ("dense", "windowed", "hybrid", "moe")


@pytest.fixture(autouse=True)
def quiet():
    logs.install()
    yield
    logs.last_errors.clear()


def params(split, servers, context=1024):
    return LoadParams(
        context=context,
        devices=split.devices,
        split=split.layers,
        experts_in_ram=split.experts_in_ram,
        rpc=tuple(server.address for server in servers),
    )


def planned(path, ask, *, portable=False):
    loader = SkeletonLoader(portable=portable)
    try:
        answer = loader.answer(DryRunQuestion(str(path), ask))
    finally:
        loader.close()
    assert answer.breakdown, answer.error
    return answer.breakdown


def loaded(path, ask):
    """Return the breakdown of a real load, and the bytes that its servers say are taken."""
    model = Model(path, ask)
    try:
        context = Context(model, ask)
        try:
            listed = inventory(ask.rpc).devices
            taken = {one.name: one.total - one.free for one in listed if one.backend == "RPC"}
            return breakdown.from_map(model, context), taken
        finally:
            context.close()
    finally:
        model.close()


def on(device, buffers):
    return sum(buffer.total for buffer in buffers if buffer.device == device)


def by_device(found):
    sums = {}
    for one in found.buffers:
        before = sums.get(one.device, (0, 0, 0))
        sums[one.device] = (before[0] + one.weights, before[1] + one.cache, before[2] + one.compute)
    return sums


def check(path, ask):
    """Compare the dry run with the load: byte for byte, on every device."""
    told = planned(path, ask)
    real, taken = loaded(path, ask)
    assert {b.name: b for b in counted_once(real.buffers, told.weights)} == {b.name: b for b in told.buffers}
    assert {device: on(device, told.buffers) for device in taken} == taken
    assert (told.output, told.n_ctx) == (real.output, real.n_ctx)
    return told


def same_from_log(path, ask):
    exact, logged = (planned(path, ask, portable=portable) for portable in (False, True))
    assert (logged.output, logged.n_ctx) == (exact.output, exact.n_ctx)
    expected = by_device(exact)
    for device, sizes in by_device(logged).items():
        assert sizes[0] == expected[device][0]
        assert sizes == pytest.approx(expected.pop(device), abs=ROUNDING)
    # What is too small for the log is left out of it.
    assert all(sum(sizes) < ROUNDING for sizes in expected.values())


@needs_map
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_planned_against_loaded(kind, split, servers):
    ask = params(split, servers)
    told = check(tiny(kind), ask)
    assert all(buffer.is_host == (buffer.device == "CPU") for buffer in told.buffers)
    same_from_log(tiny(kind), ask)


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_where_the_layers_are(kind, split, servers):
    model = Model(tiny(kind), params(split, servers))
    try:
        found = layer_devices(model)
    finally:
        model.close()
    if not found:
        pytest.skip("this llama.cpp does not say")
    offloaded = [device for device, n in zip(split.devices, split.layers, strict=True) for _ in range(n)]
    assert found == (*["CPU"] * (KINDS[kind].n_layers + 1 - len(offloaded)), *offloaded)


@pytest.mark.parametrize("n_layers", [7, 31, 96])
def test_every_split_is_exact(n_layers, servers):
    """llama.cpp takes shares of one as floats; no layer may slip over a border."""
    path = build(Spec(shape=KINDS["dense"].sized(n_layers=n_layers, n_embd=32), name="many-layers"))
    for first in range(0, n_layers + 2, 3 if n_layers > 31 else 1):
        ask = params(Split(("RPC0", "RPC1"), (first, n_layers + 1 - first)), servers)
        model = Model(path, ask, dry=True)
        try:
            assert layer_devices(model) == ("RPC0",) * first + ("RPC1",) * (n_layers + 1 - first)
        finally:
            model.close()


@needs_map
@pytest.mark.parametrize("split", [Split(("RPC0",), (3,), 1), Split(("RPC0", "RPC1"), (1, 2), 2)])
def test_experts_in_ram(split, servers):
    ask = params(split, servers)
    told = check(tiny("moe"), ask)
    same_from_log(tiny("moe"), ask)
    whole = planned(tiny("moe"), params(split._replace(experts_in_ram=0), servers))
    experts = 3 * 64 * 64 * 8 * 4
    moved = by_device(told)["CPU"][0] - by_device(whole)["CPU"][0]
    assert moved == split.experts_in_ram * experts
    assert told.weights == whole.weights


def test_experts_are_those_of_the_layers_that_are_meant():
    import re

    pattern = re.compile(experts_of_first(2))
    for name in ("blk.0.ffn_up_exps.weight", "blk.1.ffn_gate_up_exps.weight", "blk.1.ffn_down_chexps.weight"):
        assert pattern.search(name)
    for name in ("blk.2.ffn_up_exps.weight", "blk.10.ffn_up_exps.weight", "blk.0.ffn_up_shexp.weight"):
        assert not pattern.search(name)


@needs_map
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_tied_embeddings(split, servers, tmp_path, monkeypatch):
    """The output is the embedding: a device gets a copy of it."""
    monkeypatch.setattr(
        sys.modules[write.__module__],
        "tensors",
        lambda *args, **more: (one for one in tensors(*args, **more) if one.name != "output.weight"),
    )
    path = tmp_path / "tied.gguf"
    write(Spec(), path)
    ask = params(split, servers)
    told = check(path, ask)
    same_from_log(path, ask)
    embedding = read_model(path).tensors[0]
    assert embedding.name == "token_embd.weight"
    assert told.weights - planned(path, params(SPLITS["processor"], servers)).weights == (
        embedding.n_bytes if split.devices else 0
    )


@needs_map
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-12b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_the_log_of_large_models(name, servers, tmp_path):
    write_skeleton(published(name), tmp_path / "a.gguf")
    same_from_log(tmp_path / "a.gguf", params(Split(("RPC0", "RPC1"), (11, 6), 20), servers, 8192))


def test_a_dry_run_takes_no_memory_of_a_device(servers):
    before = [server.allocations for server in servers]
    planned(tiny("dense"), params(Split(("RPC0", "RPC1"), (1, 2)), servers, 2**20))
    assert [server.allocations for server in servers] == before


def test_recurrent_states_are_really_taken_and_given_back(servers):
    ask = params(Split(("RPC0",), (5,)), servers)
    assert planned(tiny("hybrid"), ask).weights
    assert servers[0].allocations[-1] == 3 * 64 * 2 * 4 * ask.n_seq_max
    listed = inventory(ask.rpc).devices
    assert [one.total - one.free for one in listed if one.backend == "RPC"] == [0, 0]


def test_a_device_that_is_too_small(servers):
    ask = params(Split(("RPC1",), (3,)), servers, 2**18)
    model = Model(tiny(), ask)
    try:
        with pytest.raises(OutOfMemory, match="context of 262144"):
            Context(model, ask)
    finally:
        model.close()
    with pytest.raises(OutOfMemory, match="cannot load"):
        Model(build(Spec(shape=KINDS["dense"].sized(n_ff=65536), name="wide")), ask)


def test_a_device_that_is_not_there():
    with pytest.raises(LoadFailed, match=r"no device CUDA7 here; it has .*CPU"):
        Model(tiny(), LoadParams(context=512, devices=("CUDA7",), split=(1,)))


def test_splits_that_cannot_be(servers):
    with pytest.raises(LoadFailed, match="split has 2 numbers for 1 devices"):
        Model(tiny(), params(Split(("RPC0",), (1, 1)), servers))
    with pytest.raises(LoadFailed, match=r"4 layers of .* it has only 2"):
        Model(tiny(), params(Split(("RPC0",), (4,)), servers))
