"""Made-up engine internals for tests of the engine room."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import App, ComposeResult

from edgechat.engine.kv.snapshot import (
    CacheMap,
    CacheStats,
    DraftCache,
    DraftingState,
    PromptUse,
    Run,
    SchedulerState,
    SlotState,
    Snapshot,
    SourceState,
    StatesOnDisk,
)
from edgechat.engine.types import Difference, Finished, ModelInfo, SpeculationStats, Timings, Usage
from edgechat.native.params import Buffer
from edgechat.planner.plan import DeviceMemory, DraftPlan, LoadPlan
from edgechat.tui.engine_room.room import EngineRoom
from edgechat.tui.theme import TERMINAL
from tests.fakes import MODEL

MIB = 2**20
RUNS = (
    Run(0, 212, 2, "pinned"),
    Run(212, 131, 2, "shared"),
    Run(343, 830, 1, "own"),
    Run(343, 1204, 1, "kept"),
)
DRAFTING = DraftingState(
    sources=(SourceState("model", 0.713, 1.42), SourceState("ngram", 0.48, 1.08)),
    lengths=(3,),
    step_seconds=0.0243,
    costs=((1, 1.0), (2, 1.06), (4, 1.31), (8, 1.92), (16, 3.6)),
    speedup=1.38,
    purse=5.2,
    why_off="",
)
PLANNED = (Buffer("CPU", True, 600 * MIB, 512 * MIB, 80 * MIB), Buffer("CPU_REPACK", True, 500 * MIB))
REAL = (Buffer("CPU", True, 600 * MIB, 512 * MIB, 180 * MIB), Buffer("CPU_REPACK", True, 500 * MIB))
PLAN = LoadPlan(
    model_path="qwen.gguf",
    model_name="Qwen3 4B",
    context=4096,
    threads=4,
    memory=(
        DeviceMemory(
            name="RAM",
            budget_bytes=6200 * MIB,
            weights_bytes=1100 * MIB,
            cache_bytes=512 * MIB,
            compute_bytes=80 * MIB,
            program_bytes=124 * MIB,
        ),
    ),
    buffers=PLANNED,
    draft=DraftPlan(
        model_path="d.gguf", model_name="Qwen3 0.6B", total_bytes=610 * MIB, context=4096, threads=4
    ),
)


def info(**changes: object) -> ModelInfo:
    import msgspec

    usual = {
        "buffers": REAL,
        "memory_bytes": 1843 * MIB,
        "drafters": ("Qwen3 0.6B", "n-grams"),
        "differences": (Difference("CPU", "compute", 80 * MIB, 180 * MIB),),
    }
    return msgspec.structs.replace(MODEL, **usual | changes)


def snapshot(runs: tuple[Run, ...] = RUNS, cells: int = 4096, **changes: object) -> Snapshot:
    usual = {
        "cache": CacheMap(
            cells=cells,
            used=sum(run.length for run in runs),
            runs=runs,
            slots=(
                SlotState(0, "5f0c99aa01", 1173, True, False),
                SlotState(1, "c0ffee0012", 1547, False, False),
                SlotState(3, None, 343, False, True),
            ),
            n_slots=4,
            stats=CacheStats(14, 4, 12_345, 3),
        ),
        "draft_cache": DraftCache(4096, 1210),
        "prompt": PromptUse(830, 812),
        "drafting": DRAFTING,
        "work": SchedulerState(
            running=1,
            waiting=0,
            settling=False,
            chunk_tokens=128,
            step_seconds=0.0243,
        ),
        "on_disk": StatesOnDisk(12, 310 * MIB),
        "memory_bytes": 1934 * MIB,
    }
    return Snapshot(**usual | changes)  # type: ignore[arg-type]


def finished(tps: float = 42.1, ttft: float = 230.0, drafted: int = 120) -> Finished:
    stats = SpeculationStats(drafted_tokens=drafted, accepted_tokens=86, mean_length=3.2, speedup=1.42)
    return Finished("r", "stop", Usage(830, 812, 200), Timings(ttft, 512.0, tps), stats if drafted else None)


LOG = "\n".join(
    [
        "llama_model_loader: loaded meta data with 28 key-value pairs and 399 tensors from qwen.gguf",
        "load_tensors: CPU_REPACK model buffer size = 500.00 MiB",
        "llama_context: n_ctx = 4096",
        "prefix cache: 14 hits, 4 misses, 12345 tokens reused, 3 evictions",
        "CPU takes 180 MiB for compute, not 80 MiB",
    ]
)


class RoomApp(App[None]):
    """The panel alone, either as wide as the terminal or docked on the right."""

    CSS = "EngineRoom.-docked { dock: right; width: 46; border-left: vkey $border; }"

    def __init__(self, *, docked: bool = False, clock: Callable[[], float] | None = None) -> None:
        super().__init__(ansi_color=True)
        self.register_theme(TERMINAL)
        self.theme = TERMINAL.name
        self.room = EngineRoom(clock=clock) if clock else EngineRoom()
        self.room.set_class(docked, "-docked")

    def compose(self) -> ComposeResult:
        yield self.room


def fill(room: EngineRoom) -> None:
    """Show every part of the panel."""
    room.show_model(PLAN, info())
    for n in range(7):
        room.show_reply(finished(38.0 + n, 400.0 - 30 * n))
    room.show_snapshot(snapshot())
    room.show_log(LOG)
