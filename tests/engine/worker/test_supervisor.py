"""The front end's side with real workers: they stream, die, go idle and end with their parent."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from edgechat.base import paths
from edgechat.base.errors import (
    EngineClosed,
    EngineCrashed,
    EngineError,
    LoadFailed,
    PromptTooLong,
    RequestRefused,
    SchemaError,
)
from edgechat.base.process import frames
from edgechat.device.memory import Memory
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from edgechat.engine.worker import connection
from edgechat.engine.worker.connection import WorkerConnection
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner import fallback
from edgechat.planner.plan import DeviceMemory, LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests import disks
from tests.engine.runtimes import Runtime
from tests.engine.runtimes import plan as plan_of
from tests.kit import tiny
from tests.kit.heads import MTP, with_head
from tests.kit.reference import Reference
from tests.planner.headers import wide
from tests.scripted import PROGRAM

pytestmark = pytest.mark.slow

LONG = "a reply that takes its time " * 20
RULES = [{"when": "slow", "reply": LONG}, {"when": "die", "reply": "I was about to say", "crash_after": 9}]


def request(text, name="r"):
    return ChatRequest(id=name, messages=(Message("user", text),))


async def said(engine, text, name="r"):
    return "".join([e.text async for e in engine.stream(request(text, name)) if isinstance(e, Delta)])


def workers():
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # one that ends just now
            if "engine" in child.cmdline():
                found.append(child)
    return found


async def until(holds, seconds=30.0):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def gone(*processes, within=30.0):
    """Wait until processes have ended."""
    await until(lambda: not any(map(_is_alive, processes)), within)


def _is_alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def start(scripted, running):
    def make(idle_seconds=600.0, on_state=None, **script):
        plan = scripted(**{"reply": "Hello!", "rules": RULES, "token_ms": 2} | script)
        return running(EngineSupervisor(plan, idle_seconds=idle_seconds, on_state=on_state))

    return make


async def test_a_schema_and_its_errors_cross_the_pipe(start):
    engine = start(reply='{"n": 12} and so on', token_ms=0)

    def asked(schema, name):
        said = (Message("user", "hi"),)
        return ChatRequest(
            id=name, messages=said, schema=schema, logprobs=1, sampling=Sampling(temperature=0)
        )

    wanted = '{"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": false}'
    events = [event async for event in engine.stream(asked(wanted, "a"))]
    assert "".join(event.text for event in events if isinstance(event, Delta)) == '{"n": 12}'
    told = [one for event in events if isinstance(event, Delta) for one in event.chances]
    assert b"".join(one.token for one in told) == b'{"n": 12}'
    for name, wrong in (("b", "[]"), ("c", '{"type": "odd"}')):
        with pytest.raises(SchemaError):
            _ = [event async for event in engine.stream(asked(wrong, name))]


@pytest.mark.parametrize("ends", ["closed", "killed"])
async def test_no_process_outlives_a_worker_whatever_it_computes(start, ends):
    """Here a grammar that takes hours."""
    engine = start()
    await engine.start()
    (worker,) = workers()
    patterns = [{"type": "string", "pattern": f".*a.{{{at}}}b"} for at in range(100, 200)]
    endless = ChatRequest(id="r", messages=(Message("user", "hi"),), schema=json.dumps({"allOf": patterns}))

    async def ask():
        with contextlib.suppress(EngineError):
            _ = [event async for event in engine.stream(endless)]

    asking = asyncio.create_task(ask())
    children = worker.children()
    while max(sum(child.cpu_times()[:2]) for child in children) < 0.3:
        await asyncio.sleep(0.02)
        children = worker.children()
    if ends == "closed":
        await engine.close()
    else:
        worker.kill()
    await gone(*children, within=3.0)  # by themselves they would end five seconds after they were asked
    await asking


async def test_the_first_request_loads_the_model(start):
    engine = start(load_ms=100)
    progress = []
    events = [event async for event in engine.stream(request("hi"), progress.append)]
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "Hello!"
    assert isinstance(events[-1], Finished)
    assert progress == sorted(progress)
    assert progress
    assert engine.model.load_ms >= 100


@pytest.mark.quick
async def test_a_killed_worker_costs_no_word_and_the_next_message_works(start):
    engine = start()
    text = ""

    async def listen():
        nonlocal text
        async for event in engine.stream(request("slow")):
            if isinstance(event, Delta):
                text += event.text
                if len(text) == 50:
                    workers()[0].kill()

    with pytest.raises(EngineCrashed, match="SIGKILL") as crash:
        await listen()
    assert LONG.startswith(text)
    assert len(text) >= 50
    assert "engine-" in (crash.value.hint or "")
    assert engine.state is EngineState.STOPPED
    assert await said(engine, "hi") == "Hello!"


async def test_a_request_that_kills_twice_is_not_tried_again(start):
    engine = start()
    for _ in range(2):
        with pytest.raises(EngineCrashed):
            await said(engine, "die")
    with pytest.raises(RequestRefused, match="crashed the engine 2 times"):
        await said(engine, "die", "another id")
    assert await said(engine, "hi") == "Hello!"


@pytest.fixture
def killed_by_linux(monkeypatch):
    """Let every worker that is killed look as if it had been for its memory."""
    kills = itertools.count()
    monkeypatch.setattr(connection, "oom_kills", lambda: next(kills))


@pytest.mark.parametrize("short", [True, False])
async def test_a_kill_for_memory_is_forgiven_where_others_took_it(start, killed_by_linux, monkeypatch, short):
    if short:
        monkeypatch.setattr("edgechat.engine.worker.supervisor.is_short", lambda plan: True)
    engine = start()
    for _ in range(3 if short else 2):
        with pytest.raises(EngineCrashed):
            await said(engine, "die")
    with pytest.raises(EngineCrashed if short else RequestRefused):
        await said(engine, "die")
    assert await said(engine, "hi") == "Hello!"


async def test_the_context_comes_back_with_the_memory(monkeypatch):
    free = [2**62]
    real = fallback.current_profile

    def look(*args):
        profile = real(*args)
        available = min(free[0], profile.memory.available)
        return replace(profile, memory=Memory(profile.memory.total, available))

    monkeypatch.setattr(fallback, "current_profile", look)
    wish = prepare(str(wide()), PlanRequest(context=32768))
    told = []
    engine = EngineSupervisor(wish, on_note=told.append)
    contexts = []
    try:
        for there in (2**62, wish.total_bytes - 200 * 2**20, wish.total_bytes - 200 * 2**20, 2**62):
            free[0] = there
            model = await engine.start()
            contexts.append((model.context, engine.plan.context))
            await engine.unload()
    finally:
        await engine.close()
    assert len({given == planned for given, planned in contexts}) == 1
    first, tight, still, last = (context for context, _ in contexts)
    assert tight == still < first == last == 32768
    assert told[-1] == "More memory is free again: the context is now 32768 tokens."
    assert len(told) == len(set(told))


async def test_a_plan_made_while_memory_was_short_grows_at_a_later_load(scripted):
    ram = DeviceMemory(name="RAM", budget_bytes=1, weights_bytes=1)
    wish = msgspec.structs.replace(scripted(context=2048), memory=(ram,))
    now = [wish]
    told = []
    engine = EngineSupervisor(wish, idle_seconds=0.05, replan=lambda: now[0], on_note=told.append)
    try:
        assert (await engine.start()).context == 2048
        now[0] = msgspec.structs.replace(wish, context=4096)
        while engine.state is not EngineState.STOPPED:
            await asyncio.sleep(0.02)
        assert (await engine.start()).context == engine.plan.context == 4096
    finally:
        await engine.close()
    assert told == ["More memory is free again: the context is now 4096 tokens."]


async def test_a_worker_killed_between_requests_is_replaced(start):
    engine = start()
    await said(engine, "hi")
    workers()[0].kill()
    await asyncio.sleep(0.2)
    assert await said(engine, "hi") == "Hello!"


async def test_a_worker_killed_while_it_loads_is_a_crash(start):
    engine = start(load_ms=3000)
    loading = asyncio.create_task(said(engine, "hi"))
    while not workers():
        await asyncio.sleep(0.02)
    workers()[0].kill()
    with pytest.raises(EngineCrashed, match="while loading"):
        await loading


async def test_a_look_into_the_worker(start):
    engine = start(token_ms=5)
    assert await engine.inspect() is None
    assert (engine.log_path, engine.log_tail()) == (None, "")
    assert await said(engine, "hi") == "Hello!"
    snapshot = await engine.inspect()
    assert 0 < snapshot.cache.used < snapshot.cache.cells == 4096
    assert snapshot.memory_bytes > 2**20
    running = []
    async for event in engine.stream(request("slow")):
        if isinstance(event, Delta) and event.tokens in (5, 50):
            looks = await asyncio.gather(*(engine.inspect() for _ in range(5)))
            running += [look.work.running for look in looks if look is not None]
    assert running == [1] * 10
    assert engine.log_path.exists()
    engine.log_path.write_text("first\n\x1b[31mlast\n")
    assert engine.log_tail() == "first\n[31mlast\n"
    assert engine.log_tail(5) == "last\n"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
async def test_a_look_into_a_worker_that_dies(start, monkeypatch):
    monkeypatch.setattr("edgechat.engine.worker.supervisor.INSPECT_SECONDS", 600.0)
    states = []
    engine = start(on_state=states.append)
    await engine.start()
    (worker,) = workers()
    worker.suspend()
    look = asyncio.create_task(engine.inspect())
    await asyncio.sleep(0.1)
    assert not look.done()
    worker.kill()
    assert await look is None
    # It was idle: nobody but the state tells.
    assert states == [EngineState.LOADING, EngineState.READY, EngineState.STOPPED]
    assert await engine.inspect() is None
    assert await said(engine, "hi") == "Hello!"
    assert await engine.inspect() is not None


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
async def test_a_worker_that_hangs_is_looked_into_once(start, monkeypatch):
    monkeypatch.setattr("edgechat.engine.worker.supervisor.INSPECT_SECONDS", 0.1)
    engine = start()
    await engine.start()
    (worker,) = workers()
    worker.suspend()
    assert [await engine.inspect() for _ in range(3)] == [None] * 3
    assert len(engine._worker._inspections) == 1
    worker.resume()
    assert await said(engine, "hi") == "Hello!"
    assert len(engine._worker._inspections) == 0
    assert await engine.inspect() is not None


async def test_what_is_too_long_to_be_sent_is_told_and_the_next_request_works(start, monkeypatch):
    engine = start()
    await engine.start()
    monkeypatch.setattr(frames, "MAX_FRAME", 2**16)
    with pytest.raises(PromptTooLong, match="MiB"):
        await said(engine, "x" * 2**16)
    assert await said(engine, "hi") == "Hello!"


async def test_a_request_beside_a_killer_is_not_to_blame(start):
    engine = start(token_ms=20)
    for _ in range(2):
        beside = asyncio.create_task(said(engine, "slow", "innocent"))
        await asyncio.sleep(0.4)
        with pytest.raises(EngineCrashed):
            await said(engine, "die", "killer")
        with pytest.raises(EngineCrashed):
            await beside
    async for event in engine.stream(request("slow", "again")):
        if isinstance(event, Delta):
            break


async def test_a_load_that_fails_or_is_cut_short_leaves_no_worker(start):
    with pytest.raises(LoadFailed, match="no such weights"):
        await start(load_error="no such weights").start()
    assert workers() == []
    for wait in (0.0, 0.01, 0.3):
        loading = start(load_ms=1000)
        started = asyncio.create_task(loading.start())
        await asyncio.sleep(wait)
        await loading.close()
        with pytest.raises(EngineClosed):
            await started
        assert not loading.has_crashed
    assert workers() == []


async def test_an_idle_worker_gives_its_memory_back(start):
    engine = start(idle_seconds=0.2)
    await engine.start()  # ahead, and never used
    await gone(*workers())
    assert await said(engine, "slow") == LONG, "a busy one is not idle"
    await gone(*workers())
    await asyncio.sleep(0.1)
    assert engine.state is EngineState.STOPPED
    assert await said(engine, "hi") == "Hello!"


async def test_an_unload_that_is_cancelled_goes_on_by_itself(start, monkeypatch):
    engine = start()
    await engine.start()
    (worker,) = workers()
    closing, close = asyncio.Event(), WorkerConnection.close

    async def slowly(connection):
        closing.set()
        await asyncio.sleep(0.2)
        await close(connection)

    monkeypatch.setattr(WorkerConnection, "close", slowly)
    unloading = asyncio.create_task(engine.unload())
    await closing.wait()
    unloading.cancel()
    await asyncio.wait([unloading])
    assert engine.state is EngineState.STOPPED
    assert not engine.has_crashed
    assert await said(engine, "hi") == "Hello!"
    assert not worker.is_running(), "the next one waits for its memory"


async def test_close_ends_the_worker(start):
    engine = start()
    await engine.start()
    (worker,) = workers()
    assert os.getpgid(worker.pid) != os.getpgid(0), "Ctrl-C in the terminal does not reach it"
    children = worker.children()
    await engine.close()
    await gone(worker, *children)


PARENT = """
import asyncio, sys
from edgechat.base.process import spawn
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.engine.types import ChatRequest, Message
from edgechat.planner.plan import LoadPlan

spawn.PROGRAM = sys.argv[2:]

async def main(path):
    plan = LoadPlan(model_path=path, model_name="m", context=4096, threads=1)
    engine = EngineSupervisor(plan)
    await engine.start()
    print("ready", flush=True)
    async for _ in engine.stream(ChatRequest(id="r", messages=(Message("user", "slow"),))):
        pass

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
async def test_a_dead_app_leaves_no_worker(scripted, how):
    plan = scripted(rules=RULES, token_ms=20)
    app = subprocess.Popen([sys.executable, "-c", PARENT, plan.model_path, *PROGRAM], stdout=subprocess.PIPE)
    assert app.stdout.readline() == b"ready\n"
    family = psutil.Process(app.pid).children(recursive=True)
    assert len(family) == 2  # the worker, and the process that renders its template
    os.kill(app.pid, how)
    app.wait()
    app.stdout.close()
    await gone(*family)


def test_the_front_end_loads_nothing_native():
    wanted = "{'llama_cpp', 'numpy', 'jinja2'}"
    code = f"import edgechat.engine.worker.supervisor, sys; print(*{wanted} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"\n"


def test_logs_do_not_pile_up(home):
    folder = paths.log_dir()
    for number in range(15):
        (folder / f"engine-20200101-000000-{number:06d}-{2**30 + number}.log").touch()
    in_use = folder / f"engine-20200101-000000-000000-{os.getpid()}.log"
    in_use.touch()
    log, handle = connection.open_log()
    os.close(handle)
    assert len(list(folder.iterdir())) == 11
    assert in_use.exists()
    assert log.parent == folder


@pytest.mark.parametrize("limit", ["size=256k", "nr_inodes=64"])
async def test_a_full_disk_costs_the_log_and_not_the_chat(start, home, limit):
    """Where nothing can be written any more, and where not even an empty file can be made."""
    home.mkdir()
    with disks.small_disk(home, limit):
        engine = start()
        assert await said(engine, "hi") == "Hello!"
        with contextlib.suppress(OSError), (home / "filler").open("wb", buffering=0) as stream:
            while limit.startswith("size"):
                stream.write(b"x" * 4096)
        with contextlib.suppress(OSError):
            for number in range(64 if limit.startswith("nr") else 0):
                (home / str(number)).touch()
        workers()[0].kill()
        while engine.state is not EngineState.STOPPED:
            await asyncio.sleep(0.02)
        assert await said(engine, "hi") == "Hello!"
        await engine.close()


async def test_where_no_disk_takes_a_log_there_is_none(start, home, monkeypatch):
    home.write_text("not a folder")
    connection._temporary_folder.cache_clear()
    monkeypatch.setattr("tempfile.tempdir", str(home / "nor here"))
    engine = start()
    assert await said(engine, "hi") == "Hello!"
    assert (engine.log_path, engine.log_tail()) == (None, "")
    with pytest.raises(EngineCrashed) as crash:
        await said(engine, "die")
    assert "log" not in (crash.value.hint or "")
    assert crash.value.log_tail == ""


def test_a_makeshift_log_goes_with_its_process(home, tmp_path):
    home.write_text("not a folder")
    makeshift = tmp_path / "makeshift"
    makeshift.mkdir()
    code = "from edgechat.engine.worker.connection import open_log as log; print(log()[0], log()[0])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(makeshift), "TEMP": str(makeshift), "TMP": str(makeshift)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert [Path(path).parent.parent for path in found.stdout.split()] == [makeshift] * 2
    assert list(makeshift.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk that is always full")
def test_a_child_goes_on_where_its_log_is_full():
    code = """
import sys, traceback
from edgechat.base.process import spawn
incoming, outgoing = spawn.adopt_pipe()
print("something", file=sys.stderr, flush=True)
try:
    raise ValueError("something else")
except ValueError:
    traceback.print_exc()
outgoing.write(b"went on")
"""
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=full,
            check=True,
        )
    assert found.stdout == b"went on"


def test_a_plan_survives_the_pipe(scripted):
    plan = scripted()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=LoadPlan) == plan


@pytest.mark.parametrize("kind", ["dense"], scope="module")
async def test_a_real_worker_says_what_the_model_says(runtime, kind):
    """Both backends say the same, for their models are the same."""
    path = runtime.model(kind)
    engine = EngineSupervisor(plan_of(path))
    try:
        events = [event async for event in engine.stream(greedy("Hello?", 24))]
    finally:
        await engine.close()
    text = "".join(event.text for event in events if isinstance(event, Delta))
    with Reference(Runtime("llama.cpp").model(kind)) as library:
        prompt = library.tokenize("<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n", special=True)
        assert text == bytes(library.greedy(prompt, 24)).decode()


def greedy(text, max_tokens):
    messages = (Message("user", text),)
    return ChatRequest(id="r", messages=messages, sampling=Sampling(temperature=0), max_tokens=max_tokens)


@pytest.mark.parametrize("kind", ["dense", "windowed", "hybrid", "moe", *MTP])
async def test_the_load_takes_what_was_planned(kind):
    """Buffer by buffer, through the planner and a real worker: identical on a CPU."""
    plan = prepare(
        str(with_head(kind) if kind in MTP else tiny(kind)), PlanRequest(draft="mtp" if kind in MTP else None)
    )
    assert plan.mtp == (kind in MTP)
    engine = EngineSupervisor(plan)
    try:
        model = await engine.start()
    finally:
        await engine.close()
    assert plan.buffers
    assert {buffer.name: buffer for buffer in model.buffers} == {b.name: b for b in plan.buffers}
