import sys
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgechat.base import paths
from edgechat.base.process import spawn
from edgechat.base.process.ask import ChildFailed
from edgechat.device.cpu import Core, Cpu, read_cpu, thread_counts
from edgechat.device.memory import Memory, read_memory
from edgechat.device.speed import (
    ATTENTION_ROWS,
    ROWS,
    AttentionCurve,
    AttentionShape,
    DeviceSpeed,
    attention_name,
    cached_speed,
    store_speed,
)
from edgechat.models.formats.quants import GgmlType
from edgechat.planner.estimate import kernel_probe_child, rates
from edgechat.planner.estimate.rates import FAMILIES, ProbeTask, in_order, measure_attention, measure_speed
from tests.rpc_server import RpcServer

RAM = Memory(4 << 30, 1 << 30)
CPU = Cpu("A processor", (Core((0,)), Core((1,))), frozenset({0, 1}))
Q4 = (GgmlType.Q4_K,)


def speed(seconds=1e-11, *, disturbed=False):
    curve = (seconds,) * len(ROWS)
    return DeviceSpeed(
        bandwidth=1e10, kernels={"Q4_K": curve}, attention=curve, threads=2, disturbed=disturbed
    )


def answering(monkeypatch, answer):
    code = (
        f"from edgechat.base.process.ask import answer; answer(lambda _: {msgspec.msgpack.encode(answer)!r})"
    )
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", code])


@pytest.mark.alone
def test_this_machine_is_measured_and_remembered():
    cpu = read_cpu()
    assert cached_speed(cpu) is None
    found = measure_speed(cpu, read_memory(), types=Q4)
    assert found.bandwidth > 1e8
    assert set(found.kernels) == {"Q4_K"}
    # Many tokens take longer than one, and less than one after the other.
    kernel = found.kernels["Q4_K"]
    assert kernel[0] < kernel[-1] < ROWS[-1] * kernel[0]
    assert cached_speed(cpu) == found
    more = measure_speed(
        cpu, read_memory(), types=(*Q4, GgmlType.IQ4_XS), before=replace(found, disturbed=False)
    )
    assert set(more.kernels) == {"Q4_K", "IQ4_XS"}
    assert more.kernels["Q4_K"] == kernel, "what is known is not measured again"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "times"),
    [(64, 8, 8), (40, 8, 4), (32, 4, 4), (16, 16, 2), (14, 2, 1), (12, 2, 1), (9, 3, 1), (1, 1, 1)],
)
def test_attention_is_measured_with_few_heads_each_as_useful(heads, kv_heads, times):
    shape = AttentionShape(heads=heads, kv_heads=kv_heads, keys=64, values=64)
    assert kernel_probe_child._times_fewer(shape) == times


@pytest.mark.alone
def test_a_slow_device_is_measured_with_fewer_types(monkeypatch):
    monkeypatch.setattr(kernel_probe_child, "_ENOUGH", 0)
    task = ProbeTask(threads=(1,), types=(GgmlType.Q4_0, GgmlType.Q8_0), buffer=2**20, is_processor=True)
    assert set(kernel_probe_child.measure(task).kernels) == {"Q4_0"}


@pytest.mark.alone
def test_accelerators_are_measured_by_the_same_probe():
    cpu = read_cpu()
    with RpcServer(2 << 30) as server:
        found = measure_speed(
            cpu, read_memory(), types=Q4, device="RPC0", key="a card", rpc=(server.address,)
        )
        assert max(server.allocations) > 300e6, "the weights are there"
    assert found.kernels["Q4_K"][0] > 1e-14
    assert not found.trials, "the number of threads is no concern of an accelerator"
    assert cached_speed(cpu, "a card") == found
    assert cached_speed(cpu) is None


def test_a_child_that_crashes(monkeypatch):
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", "import os; os.abort()"])
    with pytest.raises(ChildFailed):
        measure_speed(CPU, RAM)
    assert cached_speed(CPU) is None


def test_figures_that_are_not_possible_are_a_failure(monkeypatch):
    answering(monkeypatch, replace(speed(), bandwidth=0.0))
    with pytest.raises(ChildFailed, match="impossible"):
        measure_speed(CPU, RAM)


def test_a_disturbed_measurement_does_not_spoil_a_better_one(monkeypatch):
    answering(monkeypatch, replace(speed(2e-11, disturbed=True), bandwidth=2e10))
    found = measure_speed(CPU, RAM, before=speed(1e-11, disturbed=True))
    assert (found.bandwidth, found.kernels["Q4_K"][0], found.disturbed) == (2e10, 1e-11, True)
    assert measure_speed(CPU, RAM).kernels["Q4_K"][0] == 2e-11


HEADS = AttentionShape(heads=14, kv_heads=2, keys=64, values=64)
CURVE = AttentionCurve((0.0,) * len(ATTENTION_ROWS), (1e-7,) * len(ATTENTION_ROWS))


@pytest.mark.alone
def test_both_kinds_of_attention_are_measured_and_remembered():
    cpu = read_cpu()
    found = measure_attention(cpu, read_memory(), HEADS, speed())
    assert found.knows(HEADS)
    assert set(found.attentions) == {
        "14/2 heads of 64, f16, flash",
        "14/2 heads of 64, f16, plain",
        "14/2 heads of 64, q8_0, flash",
    }
    for curve in found.attentions.values():
        assert all(seconds > 1e-9 for seconds in curve.per_cell)
        assert curve.per_cell[0] < curve.per_cell[-1]
    assert cached_speed(cpu) == found
    odd = measure_attention(cpu, read_memory(), replace(HEADS, keys=80, values=80), found)
    assert odd.knows(replace(HEADS, keys=80, values=80))
    assert "14/2 heads of 80, q8_0, flash" not in odd.attentions, "its blocks have 32 values"
    assert odd.attentions.items() >= found.attentions.items(), "what is known is not measured again"


def test_attention_that_cannot_be_measured_is_remembered_too(monkeypatch):
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", "import os; os.abort()"])
    found = measure_attention(CPU, RAM, HEADS, speed())
    assert not found.knows(HEADS)
    assert "SIGABRT" in found.unmeasured[str(HEADS)]
    assert cached_speed(CPU) == found
    monkeypatch.setattr(rates, "ATTENTION_LIMIT", 0.5)
    monkeypatch.setattr(spawn, "command", lambda _role: [sys.executable, "-c", "import time; time.sleep(60)"])
    found = measure_attention(CPU, RAM, replace(HEADS, heads=7), found)
    assert "0.5 seconds" in found.unmeasured["7/2 heads of 64"]
    assert len(found.unmeasured) == 2


def test_the_newest_shapes_are_kept(monkeypatch):
    known = {
        attention_name(replace(HEADS, heads=n), "f16", kind): CURVE
        for n in range(2, 40)
        for kind in ("flash", "plain")
    }
    again = replace(HEADS, heads=20)
    answering(monkeypatch, replace(speed(), attentions=known, unmeasured={str(again): "failed"}))
    found = measure_attention(CPU, RAM, again, speed())
    assert len(found.attentions) == 64
    assert found.knows(again)
    assert found.knows(replace(HEADS, heads=39))
    assert not found.knows(replace(HEADS, heads=2))
    assert not found.unmeasured


def test_speeds_of_earlier_versions_are_read():
    store_speed(replace(speed(), measured=1.0), CPU)
    file = next(paths.cache_dir().glob("speed.json"))
    content = msgspec.json.decode(file.read_bytes())
    for entry in content.values():
        del entry["attentions"], entry["unmeasured"]
    file.write_bytes(msgspec.json.encode(content))
    assert cached_speed(CPU) == replace(speed(), measured=1.0)


def test_curves_that_are_not_possible_are_not_believed():
    name = attention_name(HEADS, "f16", "plain")
    for curve in (AttentionCurve((0.0,), (1e-7,)), replace(CURVE, per_cell=(-1.0, 0.0, 0.0))):
        store_speed(replace(speed(), attentions={name: curve}), CPU)
        assert cached_speed(CPU) is None
    store_speed(replace(speed(), attentions={name: CURVE}), CPU)
    assert cached_speed(CPU) is not None


_kernel = st.lists(st.floats(1e-13, 1e-9), min_size=len(ROWS), max_size=len(ROWS)).map(tuple)


@pytest.mark.slow
@given(st.fixed_dictionaries({kind.name: _kernel for family in FAMILIES for kind in family}))
def test_more_bits_of_a_family_are_never_faster(kernels):
    ordered = in_order(kernels)
    for family in FAMILIES:
        for row in range(len(ROWS)):
            seconds = [ordered[kind.name][row] for kind in family]
            assert all(few <= more * (1 + 1e-9) for few, more in pairwise(seconds))


def test_what_is_in_order_stays_as_measured():
    kernels = {"Q3_K": (1e-11,) * 7, "Q5_K": (2e-11,) * 7, "Q6_K": (3e-11,) * 7, "Q4_K": (5e-12,) * 7}
    assert in_order(kernels) == kernels


def test_the_numbers_of_threads_that_are_compared():
    def cpu(smt, fast, slow, quota=None):
        cores = [Core(tuple(range(smt * n, smt * (n + 1)))) for n in range(fast)]
        cores += [Core((smt * fast + n,), fast=False) for n in range(slow)]
        return Cpu("", tuple(cores), frozenset(range(smt * fast + slow)), quota)

    assert list(thread_counts(cpu(1, 4, 0))) == [4]
    assert list(thread_counts(cpu(2, 4, 0))) == [4, 8]
    assert list(thread_counts(cpu(2, 6, 8))) == [6, 14, 20]
    assert list(thread_counts(cpu(2, 6, 8, 8.5))) == [6]
    assert list(thread_counts(cpu(2, 4, 0, 0.5))) == [1]
