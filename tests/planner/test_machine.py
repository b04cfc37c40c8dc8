import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest

from edgechat.models.formats.quants import GgmlType
from edgechat.planner import machine as module
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.rates import COMMON, guessed
from edgechat.planner.machine import Machine, MachineDescription, with_speeds
from tests.kit.published import published
from tests.planner import golden
from tests.planner.headers import attending

SPEED = msgspec.structs.replace(guessed(5e10, 4e11, 8), measured=1.0)


def knowing(types, *, disturbed=False, measured=1.0):
    kernels = {kind.name: SPEED.kernels[kind.name] for kind in types}
    return msgspec.structs.replace(SPEED, kernels=kernels, disturbed=disturbed, measured=measured)


@pytest.fixture
def asked(monkeypatch):
    """What the probe is asked for: the device, and the types that are not known before."""
    asked = []

    def measure(_cpu, _memory, *, types, before, device="", **_options):
        known = set(before.kernels) if before is not None else set()
        asked.append((device, {kind.name for kind in types} - known))
        return knowing([*types, *(GgmlType[name] for name in known)])

    monkeypatch.setattr(module, "measure_speed", measure)
    return asked


@pytest.fixture
def attended(monkeypatch):
    """The shapes of attention that the probe is asked for."""
    attended = []

    def measure(_cpu, _memory, shape, before):
        attended.append(str(shape))
        if len(attended) == 2:
            return msgspec.structs.replace(before, unmeasured={str(shape): "failed"})
        return attending(before, shape)

    monkeypatch.setattr(module, "measure_attention", measure)
    return attended


def profile(speed, kind="CPU 50 GB/s"):
    return replace(golden.profile(16, kind), speed=speed)


def test_what_is_missing_is_measured_once(asked):
    found = with_speeds(profile(None))
    assert asked == [("", {kind.name for kind in COMMON})]
    assert with_speeds(found) == found
    more = with_speeds(found, (*COMMON, GgmlType.IQ4_XS))
    assert asked[1:] == [("", {"IQ4_XS"})]
    assert more.speed is not None
    assert "IQ4_XS" in more.speed.kernels


def test_cards_are_measured_too(asked):
    found = with_speeds(profile(knowing(COMMON), "GPU 8 GB"))
    assert asked == [("CUDA0", {kind.name for kind in COMMON})]
    assert set(found.card_speeds) == {"CUDA0"}
    assert with_speeds(found) == found


def test_a_described_card_is_not_measured(asked, attended):
    described = MachineDescription(vram=8 << 30).over(profile(knowing(COMMON)))
    with DryRun() as dry:
        Machine(described, dry=dry).timed_for([published("llama-3.1-8b")])
    assert asked == []
    assert attended == ["32/8 heads of 128"]


def test_a_disturbed_measurement_is_repeated_later(asked):
    with_speeds(profile(knowing(COMMON, disturbed=True, measured=module.time.time())))
    assert asked == []
    with_speeds(profile(knowing(COMMON, disturbed=True)))
    assert len(asked) == 1


def test_the_attention_of_a_model_is_measured_once(asked, attended):
    with DryRun() as dry:
        machine = Machine(profile(knowing(COMMON)), dry=dry)
        for header in (published("llama-3.1-8b"), published("qwen3-30b-a3b")) * 2:
            machine = machine.timed_for([header])
    assert attended == ["32/8 heads of 128", "32/4 heads of 128"], "nor again what failed"
    assert machine.profile.speed is not None
    assert set(machine.profile.speed.unmeasured) == {"32/4 heads of 128"}


def test_the_types_of_a_large_model_are_measured(asked, attended):
    large = published("llama-3.1-8b")  # Q4_K_M: in Q4_K and Q6_K
    with DryRun() as dry:
        known = Machine(profile(knowing((GgmlType.Q4_K,))), dry=dry).timed_for([large])
        assert asked == [("", {"Q6_K"})]
        assert known.timed_for([large]) is not known
        assert len(asked) == 1
        described = MachineDescription(bandwidth=1e11).over(profile(knowing(COMMON)))
        assert Machine(described, dry=dry).timed_for([large]).profile is described
    unmeasured = Machine(profile(None))
    assert unmeasured.timed_for([large]) is unmeasured, "it is no machine that is here"


def test_two_threads_measure_one_after_the_other(monkeypatch):
    """As the first screen compares all models while one of them is chosen."""
    stored, running, most = [], [], []

    def measure(_cpu, _memory, *, types, before, **_options):
        running.append(types)
        most.append(len(running))
        time.sleep(0.1)
        running.pop()
        stored.append(knowing(types))
        return stored[-1]

    monkeypatch.setattr(module, "measure_speed", measure)
    monkeypatch.setattr(module, "cached_speed", lambda _cpu: stored[-1] if stored else None)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(with_speeds, [profile(None)] * 2))
    assert (most, len(stored)) == ([1], 1)
    assert found[0] == found[1]
