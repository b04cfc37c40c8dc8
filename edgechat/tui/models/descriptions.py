"""Descriptions of models: details, cards, and table rows with as many columns as fit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from edgechat.base.network.offline import is_loopback
from edgechat.base.text import ago, figure, mebibytes, one_line, printable, rough_seconds, seconds
from edgechat.models.quality import quality_class
from edgechat.models.remote.listing import RemoteRow
from edgechat.models.remote.model import KINDS
from edgechat.planner.plan import OWN_LAYERS, DeviceMemory, LoadPlan
from edgechat.planner.ranking.ranking import RankedFile
from edgechat.planner.ranking.suggestions import ASSUMED_RATE, FirstModel
from edgechat.tui.models.known_models import BEST, ModelGroup, ModelItem, speed
from edgechat.tui.models.pulls import Pull, PullState

_PARTS = (
    ("weights", "█", "$primary"),
    ("cache", "▓", "$secondary"),
    ("compute", "▒", "$warning"),
    ("program", "░", "$accent"),
    ("projector", "▚", "$success"),
)
"""Parts of a memory bar, distinguishable by pattern even without colours."""
_FREE = "·"
_BAR = 40
RECOMMENDED = f"{BEST} recommended"


_WITHOUT_QUANT = (ModelGroup.HUB, ModelGroup.HOSTED)


_NAME = 16
"""Minimum width of a name in cells."""


_PULL_BAR = 12


_COLORS = {
    "fits": "$success",
    "ready": "$success",
    "no answer": "$warning",
    "in use": "$success",
    "slow": "$warning",
    "too lossy": "$warning",
    "damaged": "bold $error",
}


def describe(item: ModelItem, width: int, offline: str) -> Content:
    """Describe a model. width: in cells. offline: why the network is not used, or '' if it is used."""
    lines = [Content.styled(f"{one_line(item.name, 60)} {item.quant or ''}".rstrip(), "bold")]
    if item.entry is not None:
        lines.append(Content(printable(item.entry.description)))
    facts = list(_facts(item))
    if facts:
        lines.append(Content.styled(" · ".join(facts), "dim"))
    if item.is_best:
        lines.append(
            Content.styled(f"{BEST} Recommended: the best that answers quickly on this machine.", "$accent")
        )
    lines += _state(item, offline)
    if item.hosted is not None:
        lines += [Content(""), *_hosted_facts(item.hosted)]
    plan = item.plan
    if plan is not None:
        lines.append(Content(""))
        for memory in plan.memory:
            lines.append(_memory_bar(memory, min(_BAR, max(10, width - 2))))
            lines += _memory_legend(memory, width)
        lines += [Content(""), *_plan_facts(item, plan)]
    return Content("\n").join(lines)


def _facts(item: ModelItem) -> Iterator[str]:
    if item.entry is not None:
        yield item.entry.licence
        if item.entry.thinking != "none":
            switch = {"always": "always thinks first", "default-on": "thinks first; can be switched off"}
            yield switch.get(item.entry.thinking, "can think first")
    if item.senses:
        yield item.senses
    if item.row is not None:
        if item.row.glance.mtp:
            yield "has built-in drafting layers (MTP)"
        yield item.row.model.where
        if item.row.glance.n_params:
            n = item.row.glance.n_params
            yield f"{figure(n / 1e9)}B weights" if n >= 1e9 else f"{figure(n / 1e6)}M weights"
    elif item.entry is not None and item.entry.repo:
        yield item.entry.repo


def _state(item: ModelItem, offline: str) -> Iterator[Content]:
    pull = item.pull
    if pull is not None:
        yield Content(printable(pull.line))
        if pull.error is not None and pull.error.hint:
            yield Content.styled(printable(pull.error.hint), "dim")
    elif item.gone:
        yield Content.styled(printable(item.gone), "$warning")
    elif item.damage:
        yield Content.styled(f"Damaged: {printable(item.damage)}", "$error")
    elif item.is_too_large and item.option is not None:
        yield Content.styled(printable(item.option.why_not), "$warning")
    elif item.row is not None and item.row.glance.no_vision:
        yield Content.styled(printable(item.row.glance.no_vision), "$warning")
    elif item.missing_senses and item.entry is not None:
        how = f"With its projector (not downloaded), it {item.missing_senses}"
        yield Content.styled(f"{how}: edgechat pull {item.entry.name}", "dim")
    if offline and item.group in (ModelGroup.REMOTE, ModelGroup.HUB):
        yield Content.styled(f"It cannot be downloaded now: {offline} keeps edgechat offline.", "$warning")


def _plan_facts(item: ModelItem, plan: LoadPlan) -> Iterator[Content]:
    predicted = plan.predicted
    if predicted is not None:
        tps = speed(predicted.decode_tps, is_measured=item.is_measured)
        measured = " measured" if item.is_measured else ""
        yield _fact("Speed", f"{tps} tokens/s{measured}, the first after {seconds(predicted.ttft_ms / 1000)}")
    cache = "" if plan.cache_type == "f16" else f", KV cache in {plan.cache_type}"
    yield _fact("Context", f"{plan.context:,} tokens{cache}")
    quality = quality_class(plan.quant)
    if quality is not None:
        loss = plan.kl_divergence
        lost = (
            f", loses {figure(loss.value, 2)} nats (measured)" if loss is not None and loss.measured else ""
        )
        yield _fact("Quality", quality.label + lost)
    if plan.head is not None:
        yield _fact("Draft", f"{OWN_LAYERS}, {mebibytes(plan.head.total_bytes)}")
    elif plan.draft is not None:
        yield _fact("Draft", f"{plan.draft.model_name}, {mebibytes(plan.draft.total_bytes)}")
    elif plan.ngrams:
        yield _fact("Draft", "n-grams of the conversation")
    projector = plan.projector
    if projector is not None:
        where = f"on {one_line(projector.device, 30)}" if projector.device else "in RAM"
        yield _fact("Vision", f"{one_line(projector.name, 40)}, {where}")
    if plan.gpu_layers:
        layers = zip(plan.split, plan.devices, strict=True)
        yield _fact("Layers", ", ".join(f"{n} on {name}" for n, name in layers))


def _hosted_facts(row: RemoteRow) -> Iterator[Content]:
    model, speed = row.model, row.speed
    yield _fact("Server", f"{KINDS[model.kind]} at {one_line(model.url, 80)}")
    yield _fact("Context", f"{model.context:,} tokens" if model.context else "not reported by the server")
    if speed is not None:
        first = seconds(speed.ttft_ms / 1000)
        yield _fact("Speed", f"{figure(speed.decode_tps)} tokens/s measured, the first after {first}")
    else:
        yield _fact("Speed", "not measured yet")
    if not is_loopback(model.url):
        yield Content.styled("What you send to it leaves this machine.", "$warning")


def _fact(label: str, text: str) -> Content:
    return Content.assemble((f"{label:<9}", "dim"), printable(text))


def _memory_bar(memory: DeviceMemory, width: int) -> Content:
    """Return a bar showing how much of a device's budget each part of the model takes."""
    whole = max(memory.budget_bytes, memory.total_bytes, 1)
    parts: list[tuple[str, str]] = []
    used = 0
    for (_, char, style), size in zip(_PARTS, _sizes(memory), strict=True):
        cells = min(width - used, max(1, round(size / whole * width)) if size else 0)
        parts.append((char * cells, style))
        used += cells
    parts.append((_FREE * (width - used), "dim"))
    return Content.assemble(*parts)


def _memory_legend(memory: DeviceMemory, width: int) -> Iterator[Content]:
    """Yield the bar's legend, never breaking a line between a pattern and its name."""
    sizes = f"{mebibytes(memory.total_bytes)} of {mebibytes(memory.budget_bytes)}"
    parts = [Content(f"{one_line(memory.name, 30)} {sizes}")]
    for (name, char, style), size in zip(_PARTS, _sizes(memory), strict=True):
        if size:
            parts.append(Content.assemble((char, style), f" {name} {mebibytes(size)}"))
    free = memory.budget_bytes - memory.total_bytes
    if free > 0:
        parts.append(Content.assemble((_FREE, "dim"), f" free {mebibytes(free)}"))
    line = parts[0]
    for part in parts[1:]:
        longer = Content.assemble(line, "  ", part)
        if longer.cell_length > width:
            yield line
        line = part if longer.cell_length > width else longer
    yield line


def explain(item: ModelItem) -> Content:
    """Return the notes, reasons and alternatives in a model's plan, or why there is no plan."""
    plan = item.plan
    if plan is None:
        text = item.damage or (item.option.why_not if item.option is not None else "")
        return Content(printable(text) or "It has not been rated for this machine yet.")
    parts = [Content.styled("Why", "bold")]
    parts += [Content(f"• {printable(note)}") for note in (*plan.notes, *plan.reasons)]
    if plan.no_draft and not any(plan.no_draft in reason for reason in plan.reasons):
        parts.append(Content(f"• {printable(plan.no_draft)}"))
    if plan.kl_divergence is not None:
        loss = f"Loses {figure(plan.kl_divergence.value, 2)} nats: {plan.kl_divergence.source}."
        parts.append(Content.styled(printable(f"  {loss}"), "dim"))
    if plan.alternatives:
        parts += [Content(""), Content.styled("Alternatives", "bold")]
    for other in plan.alternatives:
        context = f", context {other.context:,}" if other.context else ""
        name = f"{other.model} {other.quant or ''}".rstrip()
        parts.append(Content(printable(f"• {name}{context}: {other.why_not}")))
    return Content("\n").join(parts)


def _sizes(memory: DeviceMemory) -> tuple[int, int, int, int, int]:
    cache = memory.cache_bytes + memory.checkpoint_bytes
    projector = memory.projector_bytes
    return memory.weights_bytes, cache, memory.compute_bytes, memory.program_bytes, projector


# The first-run screen.


def roles(shown: FirstModel) -> str:
    """Return a recommended model's roles, for example 'Balanced and best'."""
    first, *others = (role.value for role in shown.roles)
    *middle, last = ("", *map(str.lower, others))
    return first + "".join(f", {role}" for role in middle if role) + (f" and {last}" if last else "")


def card(shown: FirstModel, rate: float | None, *, is_wide: bool) -> Content:
    """Describe a recommended model in a few lines.

    rate: download speed in bytes per second, if known. is_wide: whether to leave out the roles, which are
    then shown above.
    """
    file, predicted = shown.file, shown.file.predicted
    name, quant = one_line(file.variant.model, 30), file.quant or ""
    arrival = (
        f" in {rough_seconds(shown.download / (rate or ASSUMED_RATE))}" if shown.download else ", on disk"
    )
    size = mebibytes(shown.download or file.variant.size) + arrival
    tps, first = f"{speed(predicted.decode_tps)} tokens/s", rough_seconds(predicted.ttft_ms / 1000)
    if is_wide:
        facts = "\n".join((f"{quant}, {size}" if quant else size, tps, f"first token after {first}"))
        return Content.assemble((name, "bold"), "\n", facts)
    star = f"  {RECOMMENDED}" if shown.is_recommended else ""
    title = Content.assemble(
        (f"  {roles(shown):<8}  ", "bold $primary"), (name, "bold"), f" {quant}", (star, "$accent")
    )
    return Content.assemble(title, f"\n    {size} · {tps} · first token {first}")


def caption(first: Sequence[FirstModel], rate: float | None) -> str:
    """Return the assumptions behind the figures on the cards."""
    if not first:
        return ""
    text = "First token: for a prompt of 1,000 tokens."
    known = f"{_bits(rate)} (measured)" if rate is not None else f"{_bits(ASSUMED_RATE)} (assumed)"
    if any(shown.download for shown in first):
        text += f" Downloads: at {known}."
    if not any(shown.is_recommended for shown in first):
        text += "\nNone is recommended: models that answer well are slow on this machine."
    return text


def _bits(rate: float) -> str:
    mbit = 8 * rate / 1e6
    return f"{figure(mbit, 2)} Mbit/s" if mbit < 1000 else f"{figure(mbit / 1000, 2)} Gbit/s"


def describe_local(item: ModelItem) -> str:
    """Return a local model's size, location, verdict and speed."""
    where = one_line(item.row.model.where, 24) if item.row is not None else ""
    tps = f", {speed(item.speed, is_measured=item.is_measured)} tokens/s" if item.speed is not None else ""
    return f"{mebibytes(item.size)}, {where}, {item.verdict}{tps}"


NOW, BROKEN = "●", "!"


@dataclass(frozen=True, slots=True)
class Column:
    """A column to the right of the name."""

    title: str
    width: int
    least: int
    """Minimum line width in cells for showing this column."""
    right: bool = False


_COLUMNS = (
    Column("QUANT", 7, 0),
    Column("SIZE", 8, 0, right=True),
    Column("VERDICT", 9, 0),
    Column("TOK/S", 5, 54, right=True),
    Column("QUALITY", 7, 70),
    Column("WHERE", 13, 86),
)


@dataclass(frozen=True)
class ColumnLayout:
    """The columns of lines that are `width` cells wide."""

    width: int
    current: str | None = None
    """Name of the chat's model."""

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for column in _COLUMNS if self.width >= column.least)

    @cached_property
    def name_width(self) -> int:
        """Width of the name in cells, not counting its mark."""
        return max(_NAME, self.width - 2 - sum(column.width + 2 for column in self.columns))

    def heading(self) -> Content:
        titles = (_cell(column.title, column) for column in self.columns)
        return Content("  " + "  ".join((_padded("NAME", self.name_width), *titles))).stylize("dim")

    def line(self, item: ModelItem) -> Content:
        name = _padded(item.name, self.name_width)
        if item.pull is not None:
            return Content.assemble(self._mark(item), name, "  ", self._progress(item.pull))
        parts: list[Content | tuple[str, str]] = [self._mark(item), (name, "bold" if item.is_best else "")]
        for column in self.columns:
            has_color = column.title == "VERDICT" and not item.is_too_large
            style = _COLORS.get(item.verdict, "") if has_color else ""
            parts += [("  ", ""), (_cell(self._text(item, column), column), style)]
        line = Content.assemble(*parts)
        return line.stylize("dim") if item.is_too_large else line

    def _mark(self, item: ModelItem) -> Content:
        if item.hosted is not None and self.current == item.name:
            return Content.styled(f"{NOW} ", "$primary")
        if item.row is not None and self.current in (item.name, item.row.model.full_name):
            return Content.styled(f"{NOW} ", "$primary")
        if item.damage or (item.pull is not None and item.pull.state is PullState.FAILED):
            return Content.styled(f"{BROKEN} ", "$error")
        return Content.styled(f"{BEST} ", "$accent") if item.is_best else Content("  ")

    def _text(self, item: ModelItem, column: Column) -> str:
        match column.title:
            case "QUANT":
                return item.quant or "" if item.group in _WITHOUT_QUANT else item.quant or "?"
            case "SIZE":
                return mebibytes(item.size) if item.size else ""
            case "VERDICT":
                return item.verdict or ("" if item.group is ModelGroup.HUB else "…")
            case "TOK/S":
                return speed(item.speed, is_measured=item.is_measured)
            case "QUALITY":
                quality = item.entry.quality if item.entry is not None else None
                return f"{quality} of 6" if quality else ""
            case _:
                return _where(item)

    def _progress(self, pull: Pull) -> Content:
        """Return a pull's progress as text, after a bar if the size is known and there is room."""
        room = self.width - self.name_width - 4
        parts: list[Content | tuple[str, str]] = []
        is_downloading = pull.state in (PullState.DOWNLOADING, PullState.STOPPING)
        if pull.progress is not None and is_downloading and room >= _PULL_BAR + 2 + len(pull.line):
            done = int(pull.progress.share * _PULL_BAR)
            parts += [("━" * done, "$primary"), ("─" * (_PULL_BAR - done), "dim"), ("  ", "")]
            room -= _PULL_BAR + 2
        style = {PullState.FAILED: "$error", PullState.STOPPED: "$warning"}.get(pull.state, "")
        return Content.assemble(*parts, (one_line(pull.line, max(1, room)), style))


def quant_lines(options: Sequence[RankedFile], width: int, best: str | None) -> tuple[Content, list[Content]]:
    """Return a heading, and a line for each quantization of a model; NOW marks the local ones."""
    rows = [("QUANT", "SIZE", "TOK/S", "LOSS", "VERDICT")]
    for option in options:
        plan = option.plan
        loss = figure(plan.kl_divergence.value, 2) if plan is not None and plan.kl_divergence else ""
        tps = speed(option.predicted.decode_tps) if plan is not None else ""
        rows.append((option.quant or "?", mebibytes(option.variant.size), tps, loss, option.verdict.label))
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    heading, *texts = [_joined(row, widths) for row in rows]
    lines: list[Content] = []
    for text, option in zip(texts, options, strict=True):
        mark = NOW if option.variant.path is not None else BEST if option.quant == best else " "
        style = "dim" if option.plan is None else "bold" if option.quant == best else ""
        lines.append(Content.styled(_cut(f"{mark} {text}", width).rstrip(), style))
    return Content.styled(f"  {heading}", "dim"), lines


def _where(item: ModelItem) -> str:
    if item.hosted is not None:
        return KINDS[item.hosted.model.kind]
    row = item.row
    if row is None:
        return ""
    if row.use is not None:
        return "loaded" if item.is_loaded else ago(time.time() - row.use.when)
    return row.model.where


def _cell(text: str, column: Column) -> str:
    text = one_line(text, column.width)
    return text.rjust(column.width) if column.right else _padded(text, column.width)


def _padded(text: str, width: int) -> str:
    """Return the text cut or padded to exactly `width` cells."""
    return _cut(one_line(text, 300), width)


def _cut(text: str, width: int) -> str:
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    return set_cell_size(text, width)


def _joined(row: Iterable[str], widths: Sequence[int]) -> str:
    (first, first_width), *middle, (last, last_width) = zip(row, widths, strict=True)
    numbers = (text.rjust(width) for text, width in middle)
    return "  ".join((first.ljust(first_width), *numbers, last.ljust(last_width)))
