"""Layers on workers, over a real ssh to this machine: placed, computed, and lost in every way."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from edgechat import settings
from edgechat.base.errors import RemoteWorkerLost, WorkerRefused
from edgechat.device.remote import workers
from edgechat.device.remote.workers import Tunnel
from edgechat.engine.types import ChatRequest, Delta, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.native.params import AdapterUse
from edgechat.planner.machine import MachineDescription, check_build
from edgechat.planner.prepare import one_model, prepare
from edgechat.planner.request import PlanRequest
from tests.kit import DENSE, NOT_PRINTABLE, Spec, build
from tests.kit.adapters import adapter
from tests.remote.link import SlowLink

pytestmark = pytest.mark.slow

MIB = 2**20
LAYERS = 12
SPEC = Spec(shape=DENSE.sized(n_layers=LAYERS, n_embd=256, n_ff=1024), name="split-dense", mute=NOT_PRINTABLE)
QUESTION = (Message("user", "The quick brown fox jumps over the lazy dog."),)


@pytest.fixture(scope="module")
def dense():
    return build(SPEC)


def planned(model, *addresses, adapters=None):
    request = PlanRequest(context=1024, threads=1, draft="none", workers=addresses, adapters=adapters)
    return prepare(str(model), request)


def ask(tokens=12, adapters=()):
    greedy = Sampling(temperature=0.0)
    return ChatRequest(id="r", messages=QUESTION, sampling=greedy, max_tokens=tokens, adapters=adapters)


async def reply(engine, tokens=12, adapters=()):
    return "".join([e.text async for e in engine.stream(ask(tokens, adapters)) if isinstance(e, Delta)])


def uses_of(plan):
    return tuple(AdapterUse(one.path, one.scale) for one in plan.adapters)


async def text_of(plan):
    engine = EngineSupervisor(plan)
    try:
        return await reply(engine, adapters=uses_of(plan))
    finally:
        await engine.close()


def connected(address):
    tunnel = workers.connect(address)
    assert isinstance(tunnel, Tunnel)
    return tunnel


async def test_two_workers_of_unequal_memory(dense, sshd):
    """The larger takes more, both what is planned, and the text is this machine's own."""
    here = await text_of(planned(dense))
    small, large = sshd.worker("small", memory=24 * MIB), sshd.worker("large", memory=40 * MIB)
    plan = planned(dense, small, large)
    assert plan.buffers  # llama.cpp's own figures, asked through the tunnels
    assert len(plan.rpc) == 2
    layers = dict(zip(plan.devices, plan.split, strict=True))
    assert 0 < layers["RPC0"] < layers["RPC1"]
    holds = {part.name: (part.total_bytes, part.budget_bytes) for part in plan.memory}
    assert 18 * MIB < holds["RPC0"][0] <= holds["RPC0"][1] <= 24 * MIB
    assert 30 * MIB < holds["RPC1"][0] <= holds["RPC1"][1] <= 40 * MIB
    assert any(small in reason and large in reason for reason in plan.reasons)
    engine = EngineSupervisor(plan)
    before = {name: sshd.workers(name)[0].memory_info().rss for name in ("small", "large")}
    try:
        model = await engine.start()
        assert model.differences == ()
        assert await reply(engine) == here != ""
        for name, device in (("small", "RPC0"), ("large", "RPC1")):
            taken = sshd.workers(name)[0].memory_info().rss - before[name]
            assert taken < holds[device][0] + 32 * MIB
    finally:
        await engine.close()


async def test_an_adapter_changes_layers_on_workers_as_it_does_here(dense, sshd, tmp_path):
    file = str(adapter(tmp_path, SPEC))
    local = planned(dense, adapters=(file,))
    plain, here = await text_of(planned(dense)), await text_of(local)
    addresses = sshd.worker("small", memory=28 * MIB), sshd.worker("large", memory=48 * MIB)
    plan = planned(dense, *addresses, adapters=(file,))
    assert plan.devices == ("RPC0", "RPC1")
    assert all(part.adapter_bytes for part in plan.memory if part.name in plan.devices)
    assert await text_of(plan) == here != plain
    # ... without it while it is loaded, and once the workers are gone
    engine = EngineSupervisor(plan)
    try:
        assert await reply(engine) == plain
        assert await reply(engine, adapters=uses_of(plan)) == here
        for worker in sshd.workers():
            worker.kill()
        with contextlib.suppress(RemoteWorkerLost):
            await reply(engine, adapters=uses_of(plan))
        assert await reply(engine, adapters=uses_of(plan)) == here
        assert engine.plan.devices == ()
    finally:
        await engine.close()


async def test_layers_that_fit_here_stay_where_the_link_is_slow(dense, sshd):
    with SlowLink(sshd.port, rate=1e6, delay=0.05) as link:
        address = sshd.worker("far", port=link.port)
        plan = planned(dense, address)
        assert plan.devices == ()
        (why,) = (reason for reason in plan.reasons if reason.startswith(address))
        assert "is not used" in why
        assert "tokens/s" in why
        measured = connected(address).link
        assert 0.09 < measured.round_trip < 0.3
        assert 0.3e6 < measured.up < 1.3e6


async def test_a_model_that_does_not_fit_here_takes_a_slow_link(dense, sshd):
    with SlowLink(sshd.port, rate=2e6, delay=0.02) as link:
        request = PlanRequest(context=1024, draft="none", workers=(sshd.worker("far", port=link.port),))
        machine = MachineDescription(ram=220 * MIB)
        alone = one_model(str(dense), msgspec.structs.replace(request, workers=()), machine, offline=True)
        assert alone.chosen is None
        found = one_model(str(dense), request, machine, offline=True)
        assert found.chosen is not None
        assert found.chosen.plan is not None
        assert found.chosen.plan.devices == ("RPC0",)


def _kill(sshd):
    sshd.workers("one")[0].kill()


def _stop(sshd):
    sshd.workers("one")[0].suspend()


def _cut(sshd):
    sshd.cut()


@pytest.mark.parametrize("harm", [_kill, _stop, _cut])
async def test_a_worker_is_lost_in_the_middle_of_an_answer(dense, sshd, harm):
    """What was said stays said; the error names the worker; the next answer comes without it."""
    here = await text_of(planned(dense))
    plan = planned(dense, sshd.worker("one"))
    assert plan.devices == ("RPC0",)
    notes = []
    engine = EngineSupervisor(plan, on_note=notes.append)
    try:
        assert await reply(engine) == here
        text, lost, began = "", "", time.monotonic()
        try:
            async for event in engine.stream(ask(900)):
                if isinstance(event, Delta):
                    if not text:
                        harm(sshd)
                    text += event.text
        except RemoteWorkerLost as error:
            lost = error.message
        assert "The worker ssh://127.0.0.1" in lost
        assert time.monotonic() - began < 60
        assert text
        assert here.startswith(text) or text.startswith(here)
        assert await reply(engine) == here
        assert engine.plan.devices == ()
        assert any("loaded without it" in note for note in notes)
        for _ in range(3):  # it is nobody's fault
            assert await reply(engine) == here
    finally:
        await engine.close()


async def test_a_worker_is_lost_between_two_answers(dense, sshd):
    address = sshd.worker("one")
    plan = planned(dense, address)
    engine = EngineSupervisor(plan, replan=lambda: planned(dense, address))
    try:
        here = await reply(engine)
        _kill(sshd)
        await until(lambda: bool(workers.why_lost(plan.rpc)))
        assert await reply(engine) == here
        assert engine.plan.devices == ()
        assert any("loaded without it" in note for note in engine.plan.notes)
    finally:
        await engine.close()


async def test_a_worker_is_lost_while_the_model_loads(dense, sshd):
    plan = planned(dense, sshd.worker("one"))
    engine = EngineSupervisor(plan)
    _kill(sshd)  # ssh notices at its leisure
    try:
        assert await reply(engine)
        assert engine.plan.devices == ()
    finally:
        await engine.close()


async def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_a_worker_ends_with_its_user(sshd):
    code = (
        "import os, sys, time; from edgechat.device.remote.workers import connect;"
        "connect(sys.argv[1]); print('connected', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, sshd.worker("one")]
    user = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"connected\n"
    assert len(sshd.workers("one")) == 1
    user.send_signal(signal.SIGKILL)
    user.wait()
    await until(lambda: not sshd.workers("one"))
    await until(lambda: not [one for one in psutil.process_iter(["cmdline"]) if _is_ours(one, sshd)])


def _is_ours(process, sshd):
    return f"{sshd.folder}/client" in (process.info["cmdline"] or ())


def test_another_build_is_refused(sshd):
    from edgechat.native.accelerators.devices import read_inventory

    tunnel, build = connected(sshd.worker("one")), read_inventory().build
    check_build(tunnel, build)
    for other in ({"ggml": "0.0.1 (abc)"}, {"version": "0.0.1"}):
        with pytest.raises(WorkerRefused, match="has a different version") as refused:
            check_build(tunnel, msgspec.structs.replace(build, **other))
        assert "pip install" in (refused.value.hint or "")


def test_what_cannot_be_reached_is_told_with_the_next_command(dense, sshd):
    nowhere = "ssh://127.0.0.1:1"
    for address, match, hint in (
        (nowhere, "Connection refused", "ssh -o BatchMode=yes -p 1 -- 127.0.0.1 true"),
        (
            f"ssh://127.0.0.1:{sshd.port}/nowhere/edgechat",
            "has no command /nowhere/edgechat",
            "Install edgechat",
        ),
        (f"ssh://127.0.0.1:{sshd.port}/bin/echo", "something else", "Try: ssh"),
        (f"ssh://127.0.0.1:{sshd.port}/bin/false", "did not start a worker", "Try: ssh"),
    ):
        with pytest.raises(WorkerRefused, match=match) as refused:
            planned(dense, address)
        assert hint in (refused.value.hint or "")
    # What settings.toml names may be switched off today.
    settings.settings_file().write_text(f'workers = ["{nowhere}"]\n')
    plan = prepare(str(dense), PlanRequest(context=1024))
    assert any("Connection refused" in note for note in plan.notes)


def test_a_worker_is_connected_again_in_its_time(sshd, monkeypatch):
    """Not at once; and then what was loaded by the old connection still counts as lost."""
    address = sshd.worker("one")
    first = connected(address)
    assert workers.connect(address) is first
    assert workers.why_lost((first.address, "127.0.0.1:1")) == ""
    first.close()
    first.lost = "ended"
    lost = workers.connect(address)
    assert isinstance(lost, workers.LostWorker)
    assert lost.why == f"The worker {address} ended."
    monkeypatch.setattr(workers, "_AGAIN", 0.0)
    second = connected(address)
    assert second is not first
    assert address in workers.why_lost((first.address,))
    assert workers.why_lost((second.address,)) == ""


def test_offline_no_other_machine_is_called(monkeypatch):
    monkeypatch.setenv("EDGECHAT_OFFLINE", "1")
    with pytest.raises(WorkerRefused, match=r"offline \(EDGECHAT_OFFLINE\)"):
        workers.connect("ssh://gpu-box.invalid")
    monkeypatch.delenv("EDGECHAT_OFFLINE")
    settings.settings_file().write_text("offline = true\n")
    with pytest.raises(WorkerRefused, match=r"offline \(settings.toml\)"):
        workers.connect("ssh://gpu-box.invalid")


def test_doctor_looks_at_a_worker(sshd):
    command = [
        sys.executable,
        "-m",
        "edgechat",
        "doctor",
        "--json",
        "--with",
        sshd.worker("one", memory=64 * MIB),
    ]
    done = subprocess.run([*command, "--with", "ssh://127.0.0.1:1"], capture_output=True, check=False)
    good, bad = json.loads(done.stdout)
    assert done.returncode == 1
    assert good["error"] is None
    assert good["devices"][0]["total"] == 64 * MIB
    assert good["link"]["up"] > 1e6
    assert "Connection refused" in bad["error"]


def test_run_keeps_every_word(dense, sshd):
    """The command line's own way: an answer that was cut stays in the store."""
    address = sshd.worker("one")
    command = [sys.executable, "-m", "edgechat", "run", str(dense), "Tell me.", "--ctx", "1024"]
    options = ["--max-tokens", "900", "--draft", "none", "--with", address, "--raw"]
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    _kill(sshd)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert address.encode() in errors
    shown = (first + rest).decode().strip()
    done = subprocess.run(
        [sys.executable, "-m", "edgechat", "chats", "--json"], capture_output=True, check=True
    )
    (chat,) = json.loads(done.stdout)
    kept = subprocess.run(
        [sys.executable, "-m", "edgechat", "chats", "show", chat["id"], "--json"],
        capture_output=True,
        check=True,
    )
    turns = json.loads(kept.stdout)["messages"]
    assert turns[-1]["content"].strip() == shown != ""
