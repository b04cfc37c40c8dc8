"""Memory: what was planned and what is used, device by device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from textual.content import Content

from edgechat.base.text import mebibytes, one_line
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.types import ModelInfo
from edgechat.native.params import Buffer
from edgechat.planner.plan import LoadPlan
from edgechat.tui.engine_room.section import LABEL, NO_MODEL, Section, row, table, wrapped

_RAM = "RAM"
_PARTS = (("weights", "█"), ("cache", "▓"), ("compute", "▒"))
_FREE = "·"
_WIDEST_BAR = 60


class _Share(NamedTuple):
    """Bytes on a device, by purpose."""

    weights: int = 0
    cache: int = 0
    compute: int = 0


class MemorySection(Section):
    """Planned and real memory."""

    TITLE: ClassVar[str] = "Memory"
    MEANING: ClassVar[str] = (
        "Planned: before the load. Real: what llama.cpp allocated. Worker: what the process takes, with the "
        "parts of the file that are in memory."
    )

    def __init__(self) -> None:
        super().__init__()
        self._plan: LoadPlan | None = None
        self._info: ModelInfo | None = None
        self._resident = 0

    def show_model(self, plan: LoadPlan | None, info: ModelInfo | None) -> None:
        """Show a plan, and the model that was loaded with it."""
        self._plan, self._info, self._resident = plan, info, 0
        self.changed()

    def show(self, snapshot: Snapshot | None) -> None:
        """Show the memory of the worker."""
        resident = snapshot.memory_bytes if snapshot else 0
        if mebibytes(resident) != mebibytes(self._resident):
            self._resident = resident
            self.changed()

    def aside(self) -> str:
        return f"worker {mebibytes(self._resident)}" if self._resident else ""

    def body(self, width: int) -> list[Content]:
        planned, real = _planned(self._plan), _by_device(self._info.buffers if self._info else ())
        budgets = {device.name: device.budget_bytes for device in self._plan.memory} if self._plan else {}
        lines: list[Content] = []
        for name in [*planned, *(name for name in real if name not in planned)]:
            lines += _device(name, planned.get(name), real.get(name), budgets.get(name, 0), width)
            lines.append(Content(""))
        lines += self._other_memory() + self._differences(width)
        return lines or wrapped(NO_MODEL, width, ".faint")

    def _other_memory(self) -> list[Content]:
        """Return what is planned besides the model itself, and the total memory of the worker."""
        plan, info, lines = self._plan, self._info, []
        if plan is not None and plan.head is None and plan.draft is not None and plan.draft.total_bytes:
            lines.append(row("draft model", mebibytes(plan.draft.total_bytes), (" planned", ".faint")))
        if plan is not None and plan.head is not None:
            lines.append(row("MTP layers", mebibytes(plan.head.total_bytes), (" of that", ".faint")))
        projector = plan.projector if plan is not None else None
        if projector is not None:
            lines.append(row("projector", mebibytes(projector.total_bytes), (" planned", ".faint")))
        adapters = sum(device.adapter_bytes for device in plan.memory) if plan else 0
        if adapters:
            lines.append(row("adapters", mebibytes(adapters), (" planned", ".faint")))
        if plan is not None and plan.backend == "llama.cpp" and plan.remote is None:
            more = "" if plan.flash_attention else ", which takes memory to compute"
            lines.append(row("attention", plan.attention, (more, ".faint")))
        program = sum(device.program_bytes for device in plan.memory) if plan else 0
        if program:
            lines.append(row("program", mebibytes(program), (" planned", ".faint")))
        if self._resident or (info and info.memory_bytes):
            now = mebibytes(self._resident) if self._resident else "not running"
            loaded = f", {mebibytes(info.memory_bytes)} when loaded" if info and info.memory_bytes else ""
            lines.append(row("worker", now, (loaded, ".faint")))
        return lines

    def _differences(self, width: int) -> list[Content]:
        info = self._info
        if info is None or not info.buffers:
            return []
        if not info.differences:
            is_exact = self._plan is not None and bool(self._plan.buffers)
            return wrapped("Memory use is as planned.", width, ".faint") if is_exact else []
        lines: list[Content] = []
        for buffer in info.differences:
            sizes = f"{mebibytes(buffer.real)} for {buffer.what}, {mebibytes(buffer.planned)} planned"
            lines += wrapped(f"! {one_line(buffer.name, 24)}: {sizes}", width, ".warning")
        return lines


def _planned(plan: LoadPlan | None) -> dict[str, _Share]:
    """Return what was planned for the model by device, as exactly as possible."""
    if plan is None:
        return {}
    if plan.buffers:
        return _by_device(plan.buffers)
    return {
        device.name: _Share(device.weights_bytes, device.cache_bytes, device.compute_bytes)
        for device in plan.memory
    }


def _by_device(buffers: Iterable[Buffer]) -> dict[str, _Share]:
    shares: dict[str, _Share] = {}
    for buffer in buffers:
        name = _RAM if buffer.device == "CPU" else buffer.device
        old = shares.get(name, _Share())
        shares[name] = _Share(
            old.weights + buffer.weights, old.cache + buffer.cache, old.compute + buffer.compute
        )
    return dict(sorted(shares.items(), key=lambda pair: pair[0] != _RAM))


def _device(name: str, planned: _Share | None, real: _Share | None, budget: int, width: int) -> list[Content]:
    """Return the figures of a device, and bars of its planned and real memory."""
    rows = []
    for at, (part, mark) in enumerate(_PARTS):
        figures = [mebibytes(share[at]) if share else "–" for share in (planned, real)]
        rows.append((Content.assemble((mark, f".{part}"), " ", (part, ".faint")), figures))
    head, *lines = table(("planned", "real"), rows, width)
    heading = Content.assemble((f"{one_line(name, LABEL - 1):<{LABEL}}", ".strong"), head[LABEL:])
    largest = max(budget, sum(planned) if planned else 0, sum(real) if real else 0)
    bars = [
        row(label, _bar(share, largest, min(width, _WIDEST_BAR) - LABEL - 9), f" {mebibytes(sum(share)):>8}")
        for label, share in (("planned", planned), ("real", real))
        if share is not None and largest
    ]
    budget_line = [row("budget", mebibytes(budget), (" when planned", ".faint"))] if budget else []
    return [heading, *lines, *bars, *budget_line]


def _bar(share: _Share, largest: int, width: int) -> Content:
    """Return a bar of the parts; each that is not empty gets at least one character."""
    parts: list[tuple[str, str]] = []
    left = width
    for (part, mark), size in zip(_PARTS, share, strict=True):
        n = min(left, max(1, round(size / largest * width))) if size else 0
        parts.append((mark * n, f".{part}"))
        left -= n
    return Content.assemble(*parts, (_FREE * left, ".faint"))
