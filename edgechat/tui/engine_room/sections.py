"""Sections of the engine room: memory, cache, drafts, server and speed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from statistics import median
from typing import ClassVar, NamedTuple

from textual.content import Content

from edgechat.base.text import mebibytes, one_line
from edgechat.engine.kv.snapshot import (
    KINDS,
    CacheMap,
    DraftingState,
    Kind,
    Run,
    SchedulerState,
    SlotState,
    Snapshot,
)
from edgechat.engine.types import Finished, ModelInfo, SpeculationStats, Timings
from edgechat.models.remote.metrics import ServerLoad
from edgechat.models.remote.model import KINDS as SERVER_KINDS
from edgechat.models.remote.model import HostedModel
from edgechat.native.params import Buffer
from edgechat.planner.plan import LoadPlan
from edgechat.tui.engine_room.section import LABEL, NO_MODEL, Section, fitting, row, table, wrapped

_RAM = "RAM"
_PARTS = (("weights", "█"), ("cache", "▓"), ("compute", "▒"))
_FREE = "·"
_WIDEST_BAR = 60


class _Share(NamedTuple):
    """Bytes on a device, broken down by use."""

    weights: int = 0
    cache: int = 0
    compute: int = 0


class MemorySection(Section):
    """Planned and actual memory use."""

    TITLE: ClassVar[str] = "Memory"
    MEANING: ClassVar[str] = (
        "Planned: before loading. Real: memory that llama.cpp allocated. Worker: memory used by the process, "
        "including the parts of the file that are in memory."
    )

    def __init__(self) -> None:
        super().__init__()
        self._plan: LoadPlan | None = None
        self._info: ModelInfo | None = None
        self._resident = 0

    def show_model(self, plan: LoadPlan | None, info: ModelInfo | None) -> None:
        self._plan, self._info, self._resident = plan, info, 0
        self.changed()

    def show(self, snapshot: Snapshot | None) -> None:
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
        """Return lines about the planned memory beyond the model's own, and the worker's total memory."""
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
    """Return the model's planned memory per device, based on the planned buffers if there are any."""
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
    """Return a device's figures, with bars for planned and actual memory."""
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
    """Return a bar with at least one character for each part that is not empty."""
    parts: list[tuple[str, str]] = []
    left = width
    for (part, mark), size in zip(_PARTS, share, strict=True):
        n = min(left, max(1, round(size / largest * width))) if size else 0
        parts.append((mark * n, f".{part}"))
        left -= n
    return Content.assemble(*parts, (_FREE * left, ".faint"))


MARKS: dict[Kind | None, tuple[str, str]] = {
    "pinned": ("█", ".pinned"),
    "own": ("▓", ".own"),
    "shared": ("▒", ".shared"),
    "kept": ("░", ".kept"),
    None: ("·", ".faint"),
}
"""Character and style for each kind; None stands for free cells."""


def scale_cells(runs: Sequence[Run], cells: int, limit: int) -> tuple[list[Kind | None], int]:
    """Return the kind that each character shows, and the number of cells per character.

    There are at most `limit` characters. Each shows the most frequent kind among its cells, but a kind that
    is not the most frequent anywhere still gets one character.
    """
    unit = 1
    while -(-cells // unit) > limit:
        unit *= 2
    counters: list[Counter[Kind]] = [Counter() for _ in range(-(-cells // unit))]
    at = 0
    for run in runs:
        stop = min(at + run.length, cells)
        while at < stop:
            step = min(stop, (at // unit + 1) * unit)
            counters[at // unit][run.kind] += step - at
            at = step
    kinds: list[Kind | None] = [_main_kind(counter, unit) for counter in counters]
    for kind in KINDS:
        if kind not in kinds and any(kind in counter for counter in counters):
            _place(kind, kinds, counters)
    return kinds, unit


def _place(kind: Kind, kinds: list[Kind | None], counters: Sequence[Counter[Kind]]) -> None:
    """Give a kind one character near where it is most frequent, but never another kind's only one."""
    best = max(range(len(kinds)), key=lambda at: counters[at][kind])
    counts = Counter(kinds)
    spare = [at for at, other in enumerate(kinds) if other is None or counts[other] > 1]
    if spare:
        kinds[min(spare, key=lambda at: (abs(at - best), at))] = kind


def _main_kind(counter: Counter[Kind], unit: int) -> Kind | None:
    kind = max(counter, key=lambda kind: counter[kind], default=None)
    return kind if 2 * sum(counter.values()) >= unit else None


def draw_map(cache: CacheMap, width: int, max_lines: int) -> tuple[list[Content], int]:
    """Return the lines of the cache map, and the number of cells per character."""
    kinds, unit = scale_cells(cache.runs, cache.cells, width * max_lines)
    return [_line(kinds[at : at + width]) for at in range(0, len(kinds), width)], unit


def _line(kinds: Sequence[Kind | None]) -> Content:
    parts = []
    for kind, group in groupby(kinds):
        mark, style = MARKS[kind]
        parts.append((mark * len(list(group)), style))
    return Content.assemble(*parts)


_MAP_LINES = 8
_SLOTS = 6


class CacheSection(Section):
    """The cache: tokens that the model has read and does not need to read again."""

    TITLE: ClassVar[str] = "Cache"
    MEANING: ClassVar[str] = (
        "A cell holds a token that need not be read again. Pinned: the system prompt and the first turn. "
        "Own: the rest of this chat. Shared: the beginning of several chats. Kept: other chats, until their "
        "cells are needed."
    )

    def __init__(self) -> None:
        super().__init__()
        self.title_of: Callable[[str], str | None] = lambda _chat: None
        """Function that returns the title of the chat with a given id."""
        self._snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot | None) -> None:
        """Show a snapshot, or that no model is loaded if it is None."""
        before, self._snapshot = self._snapshot, snapshot
        if snapshot is None or before is None or _shown_parts(snapshot) != _shown_parts(before):
            self.changed()

    def aside(self) -> str:
        cache = self._snapshot.cache if self._snapshot else None
        return f"{cache.used:,} of {cache.cells:,} cells" if cache else ""

    def body(self, width: int) -> list[Content]:
        if self._snapshot is None:
            return wrapped(NO_MODEL, width, ".faint")
        cache = self._snapshot.cache
        lines, unit = draw_map(cache, width, _MAP_LINES)
        lines += _legend(cache, unit, width)
        return [*lines, *_uses(self._snapshot, width), *self._slots(cache)]

    def _slots(self, cache: CacheMap) -> list[Content]:
        if not cache.slots:
            return []
        lines = [row("slots", f"{len(cache.slots)} of {cache.n_slots} in use")]
        shown = sorted(cache.slots, key=lambda slot: (not slot.busy, -slot.length))[:_SLOTS]
        digits = max(len(f"{slot.length:,}") for slot in shown)
        lines += [self._slot(slot, digits) for slot in sorted(shown, key=lambda slot: slot.id)]
        if more := len(cache.slots) - len(shown):
            lines.append(row("", (f"and {more} more", ".faint")))
        return lines

    def _slot(self, slot: SlotState, digits: int) -> Content:
        title = self.title_of(slot.chat) if slot.chat else "no chat"
        name = one_line(title, 60) if title else f"chat {one_line(slot.chat or '')[:6]}"
        state = "running  " * slot.busy + "shifted  " * slot.approximate
        return row(f"  {slot.id}", f"{slot.length:>{digits},}  {state}", (name, ".faint"))


def _shown_parts(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.cache, snapshot.draft_cache, snapshot.prompt, snapshot.on_disk


def _legend(cache: CacheMap, unit: int, width: int) -> list[Content]:
    """Return the legend in columns, with the number of cells of each kind, and the scale."""
    items = []
    for kind, (mark, style) in MARKS.items():
        count = cache.free if kind is None else cache.of_kind(kind)
        items.append(Content.assemble((mark, style), " ", (f"{kind or 'free':<7}", ".faint"), f"{count:>9,}"))
    items.append(Content(f"1 character = {unit:,} cell{'s' * (unit > 1)}").stylize(".faint"))
    per_line = max(1, min(3, (width + 3) // 22))
    return [Content("   ").join(items[at : at + per_line]) for at in range(0, len(items), per_line)]


def _uses(snapshot: Snapshot, width: int) -> list[Content]:
    lines: list[Content] = []
    if (prompt := snapshot.prompt) is not None:
        share = prompt.cached_tokens / max(1, prompt.prompt_tokens)
        line = row("last prompt", f"{prompt.cached_tokens:,} of {prompt.prompt_tokens:,} tokens reused")
        lines.append(fitting(width, Content.assemble(line, (f" ({share:.0%})", ".faint")), line))
    stats = snapshot.cache.stats
    if n_starts := stats.hits + stats.misses:  # counts prompts and prewarmed prefixes
        hits, reused = f"{stats.hits:,} of {n_starts:,}", f", {stats.reused_tokens:,} tokens reused"
        lines.append(fitting(width, row("cache hits", hits, (reused, ".faint")), row("cache hits", hits)))
    if stats.evictions:
        lines.append(row("evicted", f"{stats.evictions:,} times", (" to make room", ".faint")))
    if (draft := snapshot.draft_cache) is not None:
        lines.append(row("draft model", f"{draft.used:,} of {draft.cells:,} cells"))
    if (disk := snapshot.on_disk) is not None and disk.count:
        chats = "chat" if disk.count == 1 else "chats"
        lines.append(row("on disk", f"{disk.count:,} {chats}, {mebibytes(disk.n_bytes)}"))
    return lines


_NAMES = {"model": "the model", "mtp": "own layers", "ngram": "n-grams"}


class DraftsSection(Section):
    """The state of speculative decoding, or why it is off."""

    TITLE: ClassVar[str] = "Drafts"
    MEANING: ClassVar[str] = (
        "Guesses at the next tokens, which the model checks in one step: the text is the same, but appears "
        "faster. Drafts are paused when they have cost more time than the allowance."
    )

    def __init__(self) -> None:
        super().__init__()
        self._info: ModelInfo | None = None
        self._drafting: DraftingState | None = None
        self._last: SpeculationStats | None = None

    def show_model(self, info: ModelInfo | None) -> None:
        self._info, self._last = info, None
        self.changed()

    def show(self, snapshot: Snapshot | None) -> None:
        """Show the controller's estimates."""
        drafting = snapshot.drafting if snapshot else None
        if drafting != self._drafting:
            self._drafting = drafting
            self.changed()

    def take(self, reply: Finished) -> None:
        """Show how drafts affected a reply."""
        self._last = reply.speculation
        self.changed()

    def aside(self) -> str:
        drafting = self._drafting
        return f"{drafting.speedup:.2f}x now" if drafting and drafting.sources else ""

    def body(self, width: int) -> list[Content]:
        drafting = self._drafting
        if drafting is None or not drafting.sources:
            return self._no_drafts(width)
        drafters = ", ".join(self._info.drafters) if self._info and self._info.drafters else "yes"
        lines = [row("drafter", one_line(drafters, max(8, width - LABEL)))]
        rows = [
            (_NAMES[source.source], (_percent(source.acceptance), f"{source.speedup:.2f}x"))
            for source in drafting.sources
        ]
        lines += table(("accepted", "speedup"), rows, width)
        lines += self._last_reply()
        if any(drafting.lengths):
            lines.append(row("drafting", _join_lengths(drafting.lengths)))
        sizes, costs = [f"{n}" for n, _ in drafting.costs], [f"{ratio:.1f}x" for _, ratio in drafting.costs]
        lines += table(sizes, [("step time", costs)], width, "tokens")
        if drafting.why_off:
            return [*lines, *wrapped(drafting.why_off, width, ".warning")]
        return [*lines, row("allowance", f"{max(drafting.purse, 0):.1f} tokens")]

    def _no_drafts(self, width: int) -> list[Content]:
        if self._info is None:
            return wrapped(NO_MODEL, width, ".faint")
        why_off = self._drafting.why_off if self._drafting else ""
        return wrapped(one_line(self._info.no_draft or why_off or "No drafts for this model.", 400), width)

    def _last_reply(self) -> list[Content]:
        last = self._last
        if last is None:
            return [row("last reply", "no drafts")]
        share = last.accepted_tokens / max(1, last.drafted_tokens)
        accepted = f"{last.accepted_tokens:,} of {last.drafted_tokens:,} accepted"
        return [
            row("last reply", f"{last.speedup:.2f}x as fast"),
            row("", accepted, (f" ({share:.0%})", ".faint")),
            row("", f"{last.mean_length:.1f} tokens per draft"),
        ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _join_lengths(lengths: Sequence[int]) -> str:
    numbers = ", ".join(map(str, lengths[:8]))
    return f"{numbers} tokens" if len(lengths) > 1 or lengths[0] != 1 else "1 token"


class ServerSection(Section):
    """A remote engine's server."""

    TITLE: ClassVar[str] = "Server"
    MEANING: ClassVar[str] = (
        "The model runs on this server, whose cache is not visible. The request counts cover all its users."
    )

    def __init__(self) -> None:
        super().__init__()
        self._model: HostedModel | None = None
        self._load: ServerLoad | None = None

    def show_model(self, model: HostedModel | None) -> None:
        self._model, self._load = model, None
        self.changed()

    def show(self, load: ServerLoad | None) -> None:
        if load != self._load:
            self._load = load
            self.changed()

    def body(self, width: int) -> list[Content]:
        model, load = self._model, self._load
        if model is None:
            return []
        context = f"{model.context:,} tokens" if model.context else ("not reported", ".faint")
        lines = [
            row("kind", SERVER_KINDS[model.kind]),
            row("address", one_line(model.url, 200)),
            row("context", context),
        ]
        if load is None:
            return [*lines, *wrapped("It reports no metrics.", width, ".faint")]
        if load.running is not None:
            waiting = f", {load.waiting} waiting" if load.waiting is not None else ""
            lines.append(row("requests", f"{load.running} running{waiting}"))
        if load.cache_share is not None:
            lines.append(row("KV cache", f"{load.cache_share:.0%} in use"))
        return lines


_LEVELS = "▁▂▃▄▅▆▇█"
_MINUTE = 60
_FRESH = 2.0
"""Seconds for which a measured speed counts as current."""
_REPLIES = 20


class SpeedSection(Section):
    """Tokens per second, and time to first token."""

    TITLE: ClassVar[str] = "Speed"
    MEANING: ClassVar[str] = (
        "Prefill: reading the prompt, a chunk with each step. Decoding: generating text, a token with each "
        "step. First token: from the question to the first word."
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seconds: deque[tuple[int, float]] = deque(maxlen=_MINUTE)
        """The last speed measured in each second."""
        self._last = (-_FRESH, 0.0)
        self._replies: deque[Timings] = deque(maxlen=_REPLIES)
        self._work: SchedulerState | None = None

    def note(self, tokens_per_second: float) -> None:
        """Record the current speed."""
        now = self._clock()
        self._last = (now, tokens_per_second)
        if self._seconds and self._seconds[-1][0] == int(now):
            self._seconds.pop()
        self._seconds.append((int(now), tokens_per_second))

    def take(self, reply: Finished) -> None:
        """Record a reply's timings if it produced a first token."""
        if reply.timings.ttft_ms > 0:
            self._replies.append(reply.timings)

    def show(self, snapshot: Snapshot | None) -> None:
        self._work = snapshot.work if snapshot else None
        self.changed()

    def aside(self) -> str:
        n = len(self._replies)
        return "" if not n else "the last reply" if n == 1 else f"the last {n} replies"

    def body(self, width: int) -> list[Content]:
        at, speed = self._last
        is_now = speed > 0 and self._clock() - at < _FRESH
        now = f"{_figure(speed)} tok/s" if is_now else ("idle", ".faint")
        lines = [row("now", now), row("last minute", self._sparkline(width - LABEL))]
        rows = [
            ("decoding", _summary([reply.decode_tps for reply in self._replies if reply.decode_tps], _rate)),
            ("prefill", _summary([reply.prompt_tps for reply in self._replies if reply.prompt_tps], _rate)),
            ("first token", _summary([reply.ttft_ms / 1000 for reply in self._replies], _time)),
        ]
        lines += table(("last", "median", "min"), rows, width)
        return [*lines, *self._engine()]

    def _sparkline(self, width: int) -> Content:
        """Return a graph of the last minute, newest on the right, scaled to the highest speed."""
        width = min(width, _MINUTE)
        now = int(self._clock())
        columns = [0.0] * width
        for second, speed in self._seconds:
            age = now - second
            if age < _MINUTE:
                column = width - 1 - age * width // _MINUTE
                columns[column] = max(columns[column], speed)
        highest = max(columns, default=0.0)
        if highest <= 0:
            return Content(_LEVELS[0] * width).stylize(".faint")
        top = len(_LEVELS) - 1
        return Content("".join(_LEVELS[round(top * speed / highest)] for speed in columns)).stylize(".spark")

    def _engine(self) -> list[Content]:
        work = self._work
        if work is None:
            return []
        prewarming = ", preparing the next turn" if work.settling else ""
        requests = f"{work.running} running, {work.waiting} waiting"
        lines = [row("requests", requests, (prewarming, ".faint"))]
        if work.step_seconds > 0:
            lines.append(row("step", _time(work.step_seconds), (" per token", ".faint")))
            lines.append(row("chunk", f"{work.chunk_tokens:,} tokens", (" per step", ".faint")))
        return lines


def _summary(values: Sequence[float], format: Callable[[float], str]) -> tuple[str, str, str]:
    """Return the last value, the median and the minimum."""
    if not values:
        return ("–", "–", "–")
    return format(values[-1]), format(median(values)), format(min(values))


def _rate(value: float) -> str:
    return f"{_figure(value)} t/s" if value < 9_999.5 else f"{value / 1000:.1f}k t/s"


def _time(seconds: float) -> str:
    return f"{_figure(1000 * seconds)} ms" if seconds < 0.9995 else f"{_figure(seconds)} s"


def _figure(value: float) -> str:
    """Format a number with a fixed number of decimals, so that it does not jitter."""
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"
