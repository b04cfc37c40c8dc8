"""Benchmark plots: speed, cost of calls, ways of decoding, and quality versus size or speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgechat.base.errors import NotDrawn
from edgechat.base.process.spawn import frozen
from edgechat.base.text import figure as amount
from edgechat.bench.speed import CEILING, PLAIN, BenchReport

if TYPE_CHECKING:
    from edgechat.bench.quality import MeasuredModel, QualityReport

QUALITY_KINDS = (".pdf", ".png", ".svg")
_WIDTH, _HEIGHT = 58, 12
"""Size of a text plot, in character cells."""
_LABEL = 18
Measure = Callable[["MeasuredModel"], float]


def draw(report: BenchReport, title: str, path: Path) -> None:
    """Plot a report and save it as a PNG file. Raises NotDrawn."""
    figure = figure_of(15)
    figure.suptitle(title)
    deep, left, right = figure.subplots(1, 3)
    for depths, kind in (
        (report.depths, report.attention or ""),
        (report.other_depths, report.other_attention),
    ):
        speeds = [at.decode_tps for at in depths]
        deep.plot([at.depth for at in depths], speeds, marker="o", label=f"{kind} attention".strip())
    deep.set(xlabel="tokens before", ylabel="tokens per second", title="Writing", ylim=(0, None))
    if report.other_depths:
        deep.legend()
    left.plot(list(report.curve_ms), list(report.curve_ms.values()), marker="o")
    title = f"C(n) at a depth of {report.curve_depth} tokens"
    left.set(xlabel="tokens in a call", ylabel="ms", title=title, ylim=(0, None))
    tasks = list(dict.fromkeys(way.task for way in report.ways))
    names = list(dict.fromkeys(way.name for way in report.ways))
    width = 0.8 / max(len(names), 1)
    for number, name in enumerate(names):
        rates = [way.rate for way in report.ways if way.name == name]  # in task order
        places = [at + number * width for at in range(len(tasks))]
        colour = {CEILING: "lightgrey", PLAIN: "grey"}.get(name)
        right.bar(places, rates, width, label=name, color=colour)
    right.set_xticks([at + width * (len(names) - 1) / 2 for at in range(len(tasks))], tasks)
    right.set(ylabel="tokens per second", title="Ways of decoding")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    _save(figure, path)


def check(path: Path, kinds: Sequence[str] = (".png",), example: str = "--plot bench.png") -> None:
    """Raise NotDrawn if a plot could not be saved to `path`. Call this before measuring."""
    if path.suffix.lower() not in kinds:
        raise NotDrawn(
            f"{path} cannot be the name of a plot: it must end in {' or '.join(kinds)}.",
            hint=f"For example: {example}",
        )
    figure_of()
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise NotDrawn(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def figure_of(width: float = 10) -> Any:
    """Return an empty figure that is `width` inches wide. Raises NotDrawn if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # optional, and takes half a second to import
    except ImportError as error:
        raise NotDrawn(
            "Plots require matplotlib, which is not installed.",
            hint="--json prints the same figures; the packaged program does not include matplotlib."
            if frozen()
            else "pip install 'edgechat[plot]'",
        ) from error
    return Figure(figsize=(width, 4), layout="constrained")


def size(one: MeasuredModel) -> float:
    """Return the size of the file in GiB."""
    return one.model.model.size / 2**30


def speed(one: MeasuredModel) -> float:
    """Return the speed in tokens per second."""
    return one.tokens_per_second


def loss(one: MeasuredModel) -> float:
    """Return the divergence of a model (0 for the base), or its perplexity if there is no base."""
    if one.figures.divergence is not None:
        return one.figures.divergence.mean.value
    return 0.0 if one.is_base else one.figures.perplexity.value


def front(models: Iterable[MeasuredModel], value: Measure, sign: int) -> list[MeasuredModel]:
    """Return the models on the Pareto front between `value` and loss, best `value` first.

    sign: 1 if lower values are better, -1 if higher values are.
    """
    found: list[MeasuredModel] = []
    for one in sorted(models, key=lambda one: (sign * value(one), loss(one))):
        if not found or loss(one) < loss(found[-1]):
            found.append(one)
    return found


AXES: tuple[tuple[str, str, Measure, int], ...] = (
    ("size", "size in GiB", size, 1),
    ("speed", "tokens per second", speed, -1),
)
"""The Pareto fronts: name, axis label, value, and sign as defined in `front`."""


def draw_quality(report: QualityReport, path: Path) -> None:
    """Plot a quality report and save it in one of the formats in QUALITY_KINDS. Raises NotDrawn."""
    whole = figure_of()
    whole.suptitle(report.title)
    for axes, (_, label, value, sign) in zip(whole.subplots(1, 2, sharey=True), AXES, strict=True):
        on_front = front(report.models, value, sign)
        axes.plot(
            [value(one) for one in on_front], [loss(one) for one in on_front], color="lightgrey", zorder=0
        )
        for one in report.models:
            error = one.figures.divergence.mean.error if one.figures.divergence is not None else 0
            mark = "*" if one.is_chosen else "o" if one in on_front else "x"
            place = (value(one), loss(one))
            axes.errorbar(  # clip_on=False, since markers at 0 would otherwise be cut off
                *place,
                yerr=error,
                marker=mark,
                color="C1" if one.is_chosen else "C0",
                markersize=9,
                clip_on=False,
            )
            axes.annotate(one.model.label, place, xytext=(6, 5), textcoords="offset points", fontsize=8)
        axes.set(xlabel=label, ylim=(0, None))
        axes.margins(x=0.2)
        axes.label_outer()
    whole.axes[0].set_ylabel(_ordinate(report))
    whole.supxlabel("★ what this machine would run   ● on the Pareto front   × not on it", fontsize=8)
    _save(whole, path)


def _save(figure: Any, path: Path) -> None:
    """Save a figure in the format indicated by the file's suffix. Raises NotDrawn."""
    try:
        figure.savefig(path, format=path.suffix[1:].lower(), dpi=120)
    except OSError as error:
        raise NotDrawn(f"{path} cannot be written: {error.strerror or error}.") from error


def quality_text(report: QualityReport) -> str:
    """Return a quality plot as text, narrower than 80 columns."""
    return "\n\n".join(_scatter(report, label, value, sign) for _, label, value, sign in AXES)


def _scatter(report: QualityReport, label: str, value: Measure, sign: int) -> str:
    models = report.models
    on_front = front(models, value, sign)
    low, high = min(map(value, models)), max(map(value, models))
    most = max(map(loss, models)) or 1.0
    rows = [[" "] * (_WIDTH + _LABEL) for _ in range(_HEIGHT)]
    for one in sorted(models, key=loss):
        across = round((value(one) - low) / ((high - low) or 1.0) * (_WIDTH - 1))
        down = round((1 - loss(one) / most) * (_HEIGHT - 1))
        name = f"{'*' if one.is_chosen else 'o' if one in on_front else 'x'} {one.model.label}"[:_LABEL]
        # Use the nearest free row above, or else below, so that names do not overlap.
        free = (
            at for at in [*range(down, -1, -1), *range(down, _HEIGHT)] if _is_free(rows[at], across, name)
        )
        row = rows[next(free, down)]
        row[across : across + len(name)] = name
    lines = [f"{_ordinate(report)}, and {label}:"]
    for at, row in enumerate(rows):
        mark = amount(most, 2) if at == 0 else "0" if at == _HEIGHT - 1 else ""
        lines.append(f"{mark:>6} │{''.join(row).rstrip()}")
    ends = f"{amount(low)}{amount(high):>{max(1, _WIDTH - len(amount(low)))}}"
    return "\n".join([*lines, f"{'':6} └{'─' * _WIDTH}", f"{'':8}{ends}"])


def _is_free(row: Sequence[str], start: int, name: str) -> bool:
    return all(cell == " " for cell in row[max(0, start - 1) : start + len(name) + 1])


def _ordinate(report: QualityReport) -> str:
    if report.base is None:
        return "Perplexity"
    return f"Divergence from {report.base} in nats"
