"""What the models screen says of one model: what it is, the memory it takes, and every reason."""

from __future__ import annotations

from collections.abc import Iterator

from textual.content import Content

from edgechat.base.text import figure, mebibytes, one_line, printable, seconds
from edgechat.models.quality import quality_class
from edgechat.planner.plan import DeviceMemory, LoadPlan
from edgechat.tui.models.items import BEST, ModelGroup, ModelItem, speed

_PARTS = (
    ("weights", "█", "$primary"),
    ("cache", "▓", "$secondary"),
    ("compute", "▒", "$warning"),
    ("program", "░", "$accent"),
)
"""Each has a pattern of its own: they can be told apart without colours."""
_FREE = "·"
_BAR = 40


def describe(item: ModelItem, width: int, offline: str) -> Content:
    """Return what an item is, line by line."""
    return Content("\n").join(list(_description(item, width, offline)))


def _description(item: ModelItem, width: int, offline: str) -> Iterator[Content]:
    title = f"{one_line(item.name, 60)} {item.quant or ''}".rstrip()
    yield Content.styled(title, "bold")
    if item.entry is not None:
        yield Content(printable(item.entry.description))
    facts = list(_facts(item))
    if facts:
        yield Content.styled(" · ".join(facts), "dim")
    if item.is_best:
        yield Content.styled(f"{BEST} Recommended: the best model that fits this machine.", "$accent")
    yield from _state(item, offline)
    made = item.plan
    if made is not None:
        yield Content("")
        for memory in made.memory:
            yield bar(memory, min(_BAR, max(10, width - 2)))
            yield from legend(memory, width)
        yield Content("")
        yield from _plan(item, made)


def _facts(item: ModelItem) -> Iterator[str]:
    if item.entry is not None:
        yield item.entry.licence
        if item.entry.thinking != "none":
            switch = {"always": "always thinks first", "default-on": "thinks first; can be switched off"}
            yield switch.get(item.entry.thinking, "can think first")
    if item.row is not None:
        yield item.row.model.place.value
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
    elif item.damage:
        yield Content.styled(f"Damaged: {printable(item.damage)}", "$error")
    elif item.is_too_large and item.option is not None:
        yield Content.styled(printable(item.option.why_not), "$warning")
    if offline and item.group in (ModelGroup.REMOTE, ModelGroup.HUB):
        yield Content.styled(f"It cannot be downloaded now: {offline} keeps edgechat offline.", "$warning")


def _plan(item: ModelItem, made: LoadPlan) -> Iterator[Content]:
    found = made.predicted
    if found is not None:
        tps = speed(found.decode_tps, is_measured=item.is_measured)
        how = " measured" if item.is_measured else ""
        yield _fact("Speed", f"{tps} tokens/s{how}, the first after {seconds(found.ttft_ms / 1000)}")
    cache = "" if made.cache_type == "f16" else f", KV cache in {made.cache_type}"
    yield _fact("Context", f"{made.context:,} tokens{cache}")
    known = quality_class(made.quant)
    if known is not None:
        lost = f", loses {figure(made.kl_divergence.value, 2)} nats" if made.kl_divergence else ""
        yield _fact("Quality", f"{known.label}{lost}")
    if made.draft is not None:
        yield _fact("Draft", f"{made.draft.model_name}, {mebibytes(made.draft.total_bytes)}")
    elif made.ngrams:
        yield _fact("Draft", "n-grams of the conversation")
    if made.gpu_layers:
        where = zip(made.split, made.devices, strict=True)
        yield _fact("Layers", ", ".join(f"{n} on {name}" for n, name in where))


def _fact(label: str, text: str) -> Content:
    return Content.assemble((f"{label:<9}", "dim"), printable(text))


def bar(memory: DeviceMemory, width: int) -> Content:
    """Return a memory as a bar: what the model takes of what may be taken."""
    whole = max(memory.budget_bytes, memory.total_bytes, 1)
    parts: list[tuple[str, str]] = []
    used = 0
    for (_, char, style), size in zip(_PARTS, _sizes(memory), strict=True):
        cells = min(width - used, max(1, round(size / whole * width)) if size else 0)
        parts.append((char * cells, style))
        used += cells
    parts.append((_FREE * (width - used), "dim"))
    return Content.assemble(*parts)


def legend(memory: DeviceMemory, width: int) -> Iterator[Content]:
    """Yield the same in figures, in lines that are not cut between a pattern and what it means."""
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


def explain(item: ModelItem, made: LoadPlan | None) -> Content:
    """Return all there is to say of a choice: notes, reasons, and the alternatives."""
    if made is None:
        text = item.damage or (item.option.why_not if item.option is not None else "")
        return Content(printable(text) or "It has not been compared with this machine yet.")
    parts = [Content.styled("Why", "bold")]
    parts += [Content(f"• {printable(one)}") for one in (*made.notes, *made.reasons)]
    if made.no_draft and not any(made.no_draft in one for one in made.reasons):
        parts.append(Content(f"• {printable(made.no_draft)}"))
    if made.kl_divergence is not None:
        parts.append(Content.styled(f"  Loss: {printable(made.kl_divergence.source)}.", "dim"))
    if made.alternatives:
        parts += [Content(""), Content.styled("Alternatives", "bold")]
    for other in made.alternatives:
        context = f", context {other.context:,}" if other.context else ""
        name = f"{other.model} {other.quant or ''}".rstrip()
        parts.append(Content(printable(f"• {name}{context}: {other.why_not}")))
    return Content("\n").join(parts)


def _sizes(memory: DeviceMemory) -> tuple[int, int, int, int]:
    return memory.weights_bytes, memory.cache_bytes, memory.compute_bytes, memory.program_bytes
