"""Speeds that the worker learns: only those of an undisturbed machine."""

from types import SimpleNamespace

import msgspec
import pytest

from edgechat.device.load import LoadSample
from edgechat.engine.types import Delta, ErrorInfo, Failed, Finished, Prefill, Timings, Usage
from edgechat.engine.worker import load_report
from edgechat.engine.worker.load_report import LoadReport
from edgechat.planner.estimate.calibration import USUAL, Calibration, ChatUse, Correction, RunConditions
from edgechat.planner.estimate.speed import Forecast
from edgechat.planner.plan import LoadPlan

WHERE = RunConditions("a processor, 4 threads", "llama-cpp-python 1", "CPU", "llama", "Q4_K", "a model")
FORECAST = Forecast(decode=0.05, decode_depth=0.0, prefill=0.005, prefill_depth=0.0)
PLAN = LoadPlan(
    model_path="a.gguf", model_name="a model", context=4096, threads=4, where=WHERE, forecast=FORECAST
)


class Machine:
    """A machine of eight processors, and what happens on it while a request is answered."""

    def __init__(self, monkeypatch):
        self.now = LoadSample(0.0, 0.0, 0.0, 0.0, 0)
        self.battery = SimpleNamespace(power_plugged=True)
        monkeypatch.setattr(load_report, "moment", lambda: self.now)
        monkeypatch.setattr("edgechat.device.load._may_have_battery", lambda: True)
        monkeypatch.setattr("psutil.sensors_battery", lambda: self.battery, raising=False)
        monkeypatch.setattr("os.cpu_count", lambda: 8)

    def passes(self, seconds, own, others, waited, hot):
        was = self.now
        self.now = LoadSample(
            was.wall + seconds,
            was.own + own * seconds,
            was.busy + (own + others) * seconds,
            (was.waited or 0) + waited * seconds,
            (was.throttled or 0) + hot,
        )

    def answers(self, n, slower, *, plan=PLAN, own=3.9, others=0.2, waited=0.05, hot=False, beside=0):
        """Answer so many requests, so many times slower than the roofline."""
        learning = LoadReport(plan)
        for _ in range(n):
            learning.before_step(1 + beside)
            learning.learn_from([Prefill("r", 0, 500)], 1 + beside)
            self.passes(500 * FORECAST.prefill * slower, own, others, waited, hot)
            learning.before_step(1 + beside)
            learning.learn_from([Delta("r", "a", False, 1)], 1 + beside)
            self.passes(100 * FORECAST.decode * slower, own, others, waited, hot)
            rates = Timings(1.0, 1 / FORECAST.prefill / slower, 1 / FORECAST.decode / slower)
            learning.learn_from([Finished("r", "stop", Usage(500, 0, 100), rates)], beside, 700 * beside)
            self.passes(60.0, 0.0, 0.2, 0.0, hot=False)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def learnt():
    return Calibration.read().correction(WHERE)


def test_what_a_quiet_machine_does_is_learnt(machine):
    machine.answers(3, slower=1.3)
    assert (learnt().decode, learnt().prefill) == (pytest.approx(1.3), pytest.approx(1.3))


def test_what_was_read_and_written_is_learnt_of_busy_machines_too(machine):
    machine.answers(15, slower=10, own=1.2, others=3.0)
    assert Calibration.read().use() == USUAL, "they are too few"
    machine.answers(1, slower=1.0)
    assert Calibration.read().use() == ChatUse(16 * 500, 16 * 100, 300)


def test_of_requests_beside_each_other_it_is_learnt_what_the_others_hold(machine):
    machine.answers(16, slower=10, beside=3)
    assert Calibration.read().use() == ChatUse(16 * 500, 16 * 100, 300, 2100)
    assert learnt() == Correction()


KINDS = {
    "its threads are starved": lambda machine, n: machine.answers(n, 10, own=2.0, others=2.0),
    "neighbours of a virtual machine": lambda machine, n: machine.answers(n, 10, own=1.2, others=0.0),
    "others read the memory": lambda machine, n: machine.answers(n, 10, others=3.0),
    "programs queue": lambda machine, n: machine.answers(n, 10, waited=0.9),
    "beside another request": lambda machine, n: machine.answers(n, 10, beside=1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 40])
def test_what_a_busy_machine_does_is_not(machine, kind, n):
    KINDS[kind](machine, n)
    assert learnt() == Correction()
    machine.answers(3, slower=1.1)
    KINDS[kind](machine, n)
    assert learnt().decode == pytest.approx(1.1)


def test_battery_is_a_state(machine):
    machine.battery.power_plugged = False
    machine.answers(40, slower=3)
    assert learnt() == Correction()


def test_heat_is_a_state_unless_it_is_always_so(machine):
    machine.answers(3, slower=1.1)
    machine.answers(5, slower=3, hot=True)
    assert learnt().decode == pytest.approx(1.1)
    machine.answers(16, slower=3, hot=True)
    assert learnt().decode == pytest.approx(3)


def test_where_an_accelerator_computes_the_processor_may_rest(machine):
    on_card = msgspec.structs.replace(PLAN, devices=("CUDA0",), split=(33,))
    machine.answers(3, slower=1.2, plan=on_card, own=0.3)
    assert learnt().decode == pytest.approx(1.2)


def test_only_the_disturbed_half_of_a_request_is_left_out(machine):
    for _ in range(3):
        learning = LoadReport(PLAN)
        learning.before_step(1)
        machine.passes(25.0, 1.0, 3.0, 0.9, hot=False)
        learning.learn_from([Delta("r", "a", False, 1)], 1)
        machine.passes(5.0, 3.9, 0.1, 0.0, hot=False)
        learning.learn_from([Finished("r", "stop", Usage(500, 0, 100), Timings(1.0, 20.0, 20.0))], 0)
    assert (learnt().decode, learnt().prefill) == (pytest.approx(1.0), 1.0)
    assert Calibration.read().knows(WHERE)


def test_a_request_that_failed_leaves_nothing_to_the_next(machine):
    learning = LoadReport(PLAN)
    learning.before_step(1)
    machine.passes(25.0, 0.1, 8.0, 0.9, hot=False)
    learning.learn_from([Failed("x", ErrorInfo("EngineError", "no"))], 0)
    for _ in range(3):
        learning.before_step(1)
        machine.passes(2.5, 3.9, 0.1, 0.0, hot=False)
        learning.learn_from([Delta("r", "a", False, 1)], 1)
        machine.passes(5.0, 3.9, 0.1, 0.0, hot=False)
        learning.learn_from([Finished("r", "stop", Usage(500, 0, 100), Timings(1.0, 200.0, 20.0))], 0)
    assert Calibration.read().knows(WHERE)
