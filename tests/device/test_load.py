"""What else the machine does, by counters of machines that are described."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from edgechat.device import load
from edgechat.device.load import LoadSample, disturbance, moment, slowed_now
from edgechat.planner.machine import MachineDescription, in_words
from tests.planner import golden

BEFORE = LoadSample(wall=100.0, own=50.0, busy=1000.0, waited=7.0, throttled=3)


def after(own, others=0.0, **changes):
    """Return the counters ten seconds later; own, others: processors that were at work."""
    made = LoadSample(110.0, 50 + 10 * own, 1000 + 10 * (own + others), 7.0, 3)
    return replace(made, **changes)


@pytest.fixture(autouse=True)
def plugged(monkeypatch):
    battery = SimpleNamespace(power_plugged=True)
    monkeypatch.setattr("psutil.sensors_battery", lambda: battery, raising=False)
    monkeypatch.setattr("edgechat.device.load._may_have_battery", lambda: True)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    return battery


def test_a_quiet_machine():
    assert disturbance(BEFORE, after(own=3.8), threads=4) is None
    assert disturbance(BEFORE, after(own=3.8, others=0.6), threads=4) is None, "a browser"
    assert disturbance(BEFORE, after(own=0.3), threads=None) is None, "a graphics card computes"


@pytest.mark.parametrize(
    ("later", "threads"),
    [
        (after(own=2.0), 4),
        (after(own=4.0, others=2.0), 4),
        (after(own=0.3, others=3.0), None),
        (after(own=4.0, waited=16.0), 4),
        (after(own=0.0), 1),
        (LoadSample(100.0, 50.0, 1000.0), 4),
    ],
    ids=["starved", "beside others", "a card beside others", "queued", "not at all", "no time"],
)
def test_a_busy_machine(later, threads):
    assert disturbance(BEFORE, later, threads) == "busy"


def test_battery_and_heat_are_told_apart(plugged):
    assert disturbance(BEFORE, after(own=4.0, throttled=9), threads=4) == "hot"
    plugged.power_plugged = False
    assert disturbance(BEFORE, after(own=4.0), threads=4) == "battery"
    assert disturbance(BEFORE, after(own=1.0), threads=4) == "busy"
    plugged.power_plugged = None  # nobody knows
    assert disturbance(BEFORE, after(own=4.0), threads=4) is None


def test_what_a_system_does_not_count_disturbs_nobody():
    bare = [replace(one, waited=None, throttled=None) for one in (BEFORE, after(own=4.0))]
    assert disturbance(*bare, threads=4) is None


def test_this_machine_is_looked_at(tmp_path):
    before, later = moment(), moment()
    assert later.wall > before.wall
    assert later.own >= before.own
    assert later.busy >= before.busy > 0
    assert moment(tmp_path).waited is None


@pytest.mark.parametrize(("stalled", "busy"), [("0.00", False), ("12.5", False), ("99.04", True)])
def test_it_is_busy_now_where_programs_wait(tmp_path, stalled, busy):
    (tmp_path / "proc/pressure").mkdir(parents=True)
    text = f"some avg10={stalled} avg60=1.0 avg300=2.0 total=31021\nfull avg10=0.00 avg60=0.00 total=0\n"
    (tmp_path / "proc/pressure/cpu").write_text(text)
    assert slowed_now(tmp_path) == (("busy",) if busy else ())


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="Windows counts no queue")
def test_else_the_queue_of_programs_tells(tmp_path, monkeypatch, plugged):
    monkeypatch.setattr(os, "getloadavg", lambda: (7.0, 1.0, 1.0))
    plugged.power_plugged = False
    assert slowed_now(tmp_path) == ("busy", "battery")
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0, 9.0, 9.0))
    plugged.power_plugged = True
    assert slowed_now(tmp_path) == ()


def test_a_plan_says_what_slows_this_machine_down_now_and_depends_on_none_of_it():
    quiet = golden.profile(16)
    busy = replace(quiet, slowed=("busy", "battery"))
    told = in_words(busy).removeprefix(in_words(quiet))
    assert "machine is busy" in told
    assert "battery" in told
    assert MachineDescription().over(busy) == busy
    other = MachineDescription(bandwidth=1e11).over(busy)
    assert other.slowed == (), "what another machine does nobody knows"


def test_probing_asks_for_it(monkeypatch):
    from edgechat.device.profile import probe

    monkeypatch.setattr(load, "_is_busy", lambda _root: True)
    assert probe().slowed == ("busy",)
