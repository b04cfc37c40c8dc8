"""The engine room: what it shows of made-up and of real engines, at any width, and when it asks."""

import asyncio
import os
import signal
import sys
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.screen import ModalScreen, Screen

from edgechat.engine.kv.snapshot import KINDS, CacheMap, CacheStats, Run, SourceState
from edgechat.engine.types import ChatRequest, Finished, Message
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.native.params import Buffer
from edgechat.planner.plan import HeadPlan, LoadPlan
from edgechat.tui.engine_room.room import EngineRoom
from edgechat.tui.engine_room.sections import MARKS, draw_map, scale_cells
from tests import scripted
from tests.fakes import FakeEngine
from tests.tui.driving import driven
from tests.tui.rooms import DRAFTING, MIB, PLAN, RUNS, RoomApp, fill, finished, info, snapshot

RUN = st.builds(Run, st.just(0), st.integers(1, 400), st.integers(1, 4), st.sampled_from(KINDS))
SIGN_OF = {sign: kind for kind, (sign, _) in MARKS.items()}


def told(section, width=42):
    """Return what a section says at a width."""
    return "\n".join(line.content.plain.rstrip() for line in section.lay_out(width))


def filled():
    room = EngineRoom()
    fill(room)
    return room


# The map.


@given(runs=st.lists(RUN, max_size=30), free=st.integers(0, 5000), most=st.integers(8, 400))
def test_a_map_shows_every_kind_and_is_no_larger_than_it_may(runs, free, most):
    cells = sum(run.length for run in runs) + free + 1
    drawn, unit = scale_cells(runs, cells, most)
    assert len(drawn) <= most
    assert (len(drawn) - 1) * unit < cells <= len(drawn) * unit
    assert {run.kind for run in runs} <= set(drawn)
    assert unit == 1 or -(-cells // (unit // 2)) > most
    for kind in KINDS:
        shown = unit * drawn.count(kind)
        n_runs = sum(run.kind == kind for run in runs)
        held = sum(run.length for run in runs if run.kind == kind)
        assert abs(shown - held) <= unit * (2 * n_runs + len(KINDS))
    if unit == 1:
        in_order = [run.kind for run in runs for _ in range(run.length)]
        assert drawn == in_order + [None] * (free + 1)


def test_a_cache_that_is_more_than_full_is_drawn():
    drawn, _ = scale_cells([Run(0, 300, 1, "own")], 200, 100)
    assert set(drawn) == {"own"}


def test_kinds_are_told_apart_without_colour():
    assert len(SIGN_OF) == len(MARKS) == len({style for _, style in MARKS.values()})
    lines, unit = draw_map(snapshot().cache, 42, 8)
    assert unit == 16
    signs = "".join(line.plain for line in lines)
    assert [SIGN_OF[sign] for sign in dict.fromkeys(signs)] == ["pinned", "shared", "own", "kept", None]
    assert len(signs) == 4096 // unit


# What the sections say.


@pytest.mark.parametrize("width", [20, 42, 57, 60, 97, 160])
def test_no_line_is_wider_than_the_panel(width):
    room = filled()
    large = tuple(Run(run.start, 1000 * run.length, run.slots, run.kind) for run in RUNS)
    for seen in (snapshot(), snapshot(large, 10_000_000), None):
        room.show_snapshot(seen)
        for section in room.sections:
            assert all(line.content.cell_length <= max(width, 24) for line in section.lay_out(width))


def test_the_cache_says_what_was_reused_and_who_holds_it():
    room = filled()
    room.cache.title_of = {"5f0c99aa01": "Holidays"}.get
    text = told(room.cache)
    assert "2,377 of 4,096 cells" in text
    assert "812 of 830 tokens reused (98%)" in text
    assert "14 of 18, 12,345 tokens reused" in text
    assert "1,210 of 4,096 cells" in text
    assert "12 chats, 310 MiB" in text
    assert "running  Holidays" in text
    assert "chat c0ffee" in text
    counts = [int(count.replace(",", "")) for count in (text.split(name)[1].split()[0] for name in _NAMES)]
    assert sum(counts) == 4096


_NAMES = ("pinned ", "own ", "shared ", "kept ", "free ")


def test_drafts_say_who_drafts_and_what_it_is_worth():
    room = filled()
    text = told(room.drafts)
    for part in (
        "1.38x now",
        "Qwen3 0.6B, n-grams",
        "71%",
        "48%",
        "1.42x",
        "86 of 120 accepted (72%)",
        "3.6x",
    ):
        assert part in text
    assert "allowance   5.2 tokens" in text
    room.show_reply(finished(drafted=0))
    assert "last reply  no drafts" in told(room.drafts)


def test_drafts_name_the_layers_of_the_model_itself():
    room = filled()
    own = (SourceState("mtp", 0.82, 1.61), SourceState("ngram", 0.48, 1.08))
    room.show_model(PLAN, info(drafters=("its own layers (MTP)", "n-grams")))
    room.show_snapshot(snapshot(drafting=msgspec.structs.replace(DRAFTING, sources=own)))
    text = told(room.drafts)
    assert "its own layers (MTP), n-grams" in text
    assert "own layers" in text.split("\n", 2)[2]
    assert "82%" in text
    assert "1.61x" in text


def test_memory_says_what_drafting_layers_take():
    room = filled()
    assert "MTP layers" not in told(room.memory)
    plan = msgspec.structs.replace(PLAN, mtp=True, head=HeadPlan(total_bytes=600 * 2**20, gain=1.5))
    room.show_model(plan, info())
    assert "MTP layers  600 MiB" in told(room.memory)


def test_drafts_say_why_nobody_drafts():
    room = filled()
    nobody = msgspec.structs.replace(DRAFTING, sources=())
    room.show_snapshot(snapshot(drafting=nobody))
    room.show_model(PLAN, info(drafters=(), no_draft="Its vocabulary is different."))
    assert "Its vocabulary is different." in told(room.drafts)
    room.show_model(PLAN, info(drafters=()))
    assert "No drafts for this model." in told(room.drafts)
    paused = msgspec.structs.replace(DRAFTING, why_off="They have lost time.", purse=-0.5)
    room.show_snapshot(snapshot(drafting=paused))
    assert "They have lost time." in told(room.drafts)
    assert "allowance   " not in told(room.drafts)


def test_memory_shows_plan_and_load_side_by_side():
    room = filled()
    text = told(room.memory)
    assert "weights      1.1 GiB   1.1 GiB" in text
    assert "compute       80 MiB   180 MiB" in text
    assert "CPU: 180 MiB for compute, 80 MiB planned" in " ".join(text.split())
    assert "610 MiB planned" in text
    assert "1.9 GiB, 1.8 GiB when loaded" in text
    room.show_model(PLAN, info(buffers=PLAN.buffers, differences=()))
    assert "Memory use is as planned." in told(room.memory)
    room.show_model(PLAN, None)
    assert "weights      1.1 GiB         –" in told(room.memory)
    room.show_model(None, None)
    assert "No model is loaded." in told(room.memory)


def test_memory_of_several_devices():
    room = EngineRoom()
    card = Buffer("CUDA0", False, 3000 * MIB, 400 * MIB, 200 * MIB, "CUDA0")
    pinned = Buffer("CUDA_Host", True, 0, 0, 20 * MIB, "CPU")
    buffers = (card, pinned, Buffer("CPU", True, 300 * MIB))
    plan = msgspec.structs.replace(PLAN, buffers=buffers)
    room.show_model(plan, info(buffers=buffers, differences=()))
    text = told(room.memory)
    assert text.index("RAM") < text.index("CUDA0")
    ram, cuda = text.split("CUDA0")
    assert "300 MiB" in ram
    assert "20 MiB" in ram
    assert "2.9 GiB" in cuda


def test_speed_remembers_a_minute():
    now = 100.0
    room = EngineRoom(clock=lambda: now)
    assert "idle" in told(room.speed)
    for second in range(30):
        now = 100.0 + second
        room.show_speed(20.0 if second < 15 else 40.0)
    assert "40.0 tok/s" in told(room.speed)
    (line,) = [line for line in told(room.speed, 72).splitlines() if "last minute" in line]
    spark = line[12:]
    assert spark == "▁" * 30 + "▅" * 15 + "█" * 15
    now += 10
    assert "idle" in told(room.speed)
    (line,) = [line for line in told(room.speed, 72).splitlines() if "last minute" in line]
    assert line[12:] == "▁" * 20 + "▅" * 15 + "█" * 15 + "▁" * 10
    now += 60
    assert "▅" not in told(room.speed)


def test_speed_counts_the_last_replies():
    room = EngineRoom()
    for n in range(30):
        room.show_reply(finished(tps=100.0 + n, ttft=1000.0 * (n + 1)))
    text = told(room.speed)
    assert "the last 20 replies" in text
    assert "129 t/s   120 t/s   110 t/s" in text
    assert "30.0 s    20.5 s    11.0 s" in text
    cancelled = finished()
    nothing = msgspec.structs.replace(cancelled.timings, ttft_ms=0.0)
    room.show_reply(msgspec.structs.replace(cancelled, timings=nothing))
    assert told(room.speed) == text


def test_foreign_text_is_inert():
    room = EngineRoom()
    evil = "\x1b]0;gone\x07[bold]name[/]\n\x9b2J"
    room.show_model(msgspec.structs.replace(PLAN, model_name=evil), info(drafters=(evil,), no_draft=evil))
    room.show_snapshot(snapshot())
    room.cache.title_of = lambda _: evil
    room.show_log(f"{evil}\n\x1b[31mred\n")
    text = "".join(told(section) for section in room.sections)
    assert not {"\x1b", "\x9b", "\x07"} & set(text)
    assert "[bold]name[/]" in text  # not markup either


# On the screen.


@pytest.mark.slow
@pytest.mark.parametrize(("width", "docked"), [(140, True), (60, False), (100, False), (160, False)])
async def test_the_panel_at_all_widths(width, docked):
    app = RoomApp(docked=docked)
    async with driven(app, size=(width, 90)) as pilot:
        fill(app.room)
        await pilot.pause()
        text = pilot.text
        for title in ("Speed", "Cache", "Drafts", "Memory", "Log"):
            assert title in text
        assert "812 of 830 tokens reused" in text
        assert "A cell holds a token" in text
        assert ("Drafts" in text.splitlines()[0]) == (width >= 100 and not docked)
        app.room.focus()
        await pilot.press("e", hidden="A cell holds a token")


@pytest.mark.slow
async def test_the_panel_is_scrolled_by_keys():
    app = RoomApp()
    async with driven(app, size=(60, 20)) as pilot:
        fill(app.room)
        await pilot.pause()
        pilot.shows(hidden="Log")
        app.room.focus()
        await pilot.press("end", see="CPU takes 180 MiB for compute")


@pytest.mark.slow
async def test_an_update_costs_about_the_same_however_full_the_cache():
    app = RoomApp()
    async with driven(app, size=(160, 50)) as pilot:
        fill(app.room)
        await pilot.pause()
        took = {2: [], 256: []}
        for n in range(40):
            n_runs = (2, 256)[n % 2]
            runs = tuple(Run(20 * at, 15 + (at * n) % 3, 1, KINDS[(at + n) % 4]) for at in range(n_runs))
            began = time.process_time()
            app.room.show_snapshot(snapshot(runs, 8192, memory_bytes=n * MIB))
            await pilot.pause()
            took[n_runs].append(time.process_time() - began)
        assert min(took[256]) < 3 * min(took[2])


class Window(ModalScreen[None]):
    """Something in front of a part of the panel."""


class Cover(Screen[None]):
    """Something in front of all of the panel."""


@pytest.mark.slow
async def test_an_engine_is_asked_only_while_somebody_looks():
    engine = FakeEngine()
    await engine.start()
    engine.snapshot, engine.log = snapshot(), "a line of the log"
    app = RoomApp(docked=True)
    async with driven(app, size=(140, 50)) as pilot:
        app.room.follow(lambda: engine)
        app.room.poll_interval = 0.02
        await pilot.until(lambda: engine.looks > 3)
        pilot.shows("2,377 of 4,096 cells")
        assert "a line of the log" in told(app.room.log_lines)
        app.room.display = False
        await pilot.until(lambda: not app.room.follows)
        await _quiet(engine, pilot)
        app.room.display = True
        seen = engine.looks
        await pilot.until(lambda: engine.looks > seen + 3)
        app.push_screen(Window())
        await pilot.pause()
        seen = engine.looks
        await pilot.until(lambda: engine.looks > seen + 3)
        app.push_screen(Cover())
        await pilot.pause()
        await _quiet(engine, pilot)
        app.pop_screen()
        app.pop_screen()
        seen = engine.looks
        await pilot.until(lambda: engine.looks > seen + 3)
        engine.snapshot = None
        await pilot.see("No model is loaded.")
        await app.room.remove()
        await _quiet(engine, pilot)
    assert not app.room.follows


async def _quiet(engine, pilot):
    """Wait until nobody asks for ten intervals; what was on its way may still come before."""
    for _ in range(20):
        seen = engine.looks
        await asyncio.sleep(0.2)
        if engine.looks == seen:
            return
    raise AssertionError("the engine is asked all the time")


@pytest.mark.slow
async def test_there_may_be_no_engine_yet():
    app = RoomApp()
    async with driven(app, size=(100, 50)) as pilot:
        app.room.follow(lambda: None)
        await pilot.see("No model is loaded.")


@pytest.fixture
def plan(tmp_path, scripted_workers):
    reply = "Now I will tell you a story. Now I will tell it again."
    script = scripted.write(tmp_path / "model.gguf", reply=reply, token_ms=5)
    return LoadPlan(model_path=str(script), model_name="s", context=4096, threads=1, n_seq_max=4)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
async def test_a_real_engine_is_shown_and_its_death_too(plan):
    engine = EngineSupervisor(msgspec.structs.replace(plan, ngrams=True))
    app = RoomApp()
    try:
        async with driven(app, size=(160, 60)) as pilot:
            app.room.follow(lambda: engine)
            app.room.show_model(engine.plan, await engine.start())
            system = Message("system", "Tell stories.")
            for chat, text in (("0000000a", "One"), ("0000000b", "Another")):
                request = ChatRequest(id=chat, messages=(system, Message("user", text)), chat=chat)
                async for event in engine.stream(request):
                    if isinstance(event, Finished):
                        app.room.show_reply(event)
            await pilot.see("2 of 4 in use")
            seen = await engine.inspect()
            assert seen is not None
            assert {run.kind for run in seen.cache.runs} == set(KINDS)
            await pilot.see(f"{seen.cache.used:,} of 4,096 cells")
            text = pilot.text
            assert "n-grams" in text
            assert "the last 2 replies" in text
            assert "tokens reused" in text
            assert set(SIGN_OF) <= set(text)
            worker = engine._worker
            assert worker is not None
            os.kill(worker._process.pid, signal.SIGKILL)
            await pilot.see("No model is loaded.")
    finally:
        await engine.close()


def test_an_empty_cache_has_a_map():
    empty = CacheMap(cells=4096, used=0, runs=(), slots=(), n_slots=4, stats=CacheStats())
    room = EngineRoom()
    room.show_snapshot(snapshot(cache=empty, prompt=None, draft_cache=None, on_disk=None))
    text = told(room.cache)
    assert "0 of 4,096 cells" in text
    assert "·" * 42 in text
    assert "reused" not in text
