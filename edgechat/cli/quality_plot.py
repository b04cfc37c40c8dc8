"""Plots of quality: against size and against speed, with the Pareto front, as a file or as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from edgechat.base.errors import NotDrawn
from edgechat.base.text import figure
from edgechat.bench.quality import MeasuredModel, QualityReport
from edgechat.cli.plot import check as _check
from edgechat.cli.plot import figure_of

_KINDS = (".pdf", ".png", ".svg")
_WIDTH, _HEIGHT = 58, 12
"""Of a plot in text, in cells."""
_LABEL = 18
Measure = Callable[[MeasuredModel], float]


def size(one: MeasuredModel) -> float:
    """Return the size of a file in GiB."""
    return one.model.model.size / 2**30


def speed(one: MeasuredModel) -> float:
    """Return the tokens per second."""
    return one.tokens_per_second


def loss(one: MeasuredModel) -> float:
    """Return how bad a model is: its divergence, none for the base; else its perplexity."""
    if one.figures.divergence is not None:
        return one.figures.divergence.mean.value
    return 0.0 if one.is_base else one.figures.perplexity.value


def front(models: Iterable[MeasuredModel], value: Measure, sign: int) -> list[MeasuredModel]:
    """Return the models on the Pareto front: no other one is as good by `value` and loses less.

    sign: 1 where less of the value is better, -1 where more is. The best by the value come first.
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
"""The fronts: name, label, value, and 1 where less of it is better, else -1."""


def check(path: Path) -> None:
    """Check, before anything is measured, that a plot can be drawn. Raises NotDrawn."""
    _check(path, _KINDS, "--plot quality.svg, or --plot - for the terminal")


def draw(report: QualityReport, path: Path) -> None:
    """Write a picture of the kind that the name ends with. Raises NotDrawn."""
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
            axes.errorbar(  # at 0 it would be cut off
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
    try:
        whole.savefig(path, format=path.suffix[1:].lower(), dpi=120)
    except OSError as error:
        raise NotDrawn(f"{path} cannot be written: {error.strerror or error}.") from error


def text(report: QualityReport) -> str:
    """Return the same as text, under 80 columns."""
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
        # The next free row, so that no name hides another one.
        free = (
            at for at in [*range(down, -1, -1), *range(down, _HEIGHT)] if _is_free(rows[at], across, name)
        )
        row = rows[next(free, down)]
        row[across : across + len(name)] = name
    lines = [f"{_ordinate(report)}, and {label}:"]
    for at, row in enumerate(rows):
        mark = figure(most, 2) if at == 0 else "0" if at == _HEIGHT - 1 else ""
        lines.append(f"{mark:>6} │{''.join(row).rstrip()}")
    ends = f"{figure(low)}{figure(high):>{max(1, _WIDTH - len(figure(low)))}}"
    return "\n".join([*lines, f"{'':6} └{'─' * _WIDTH}", f"{'':8}{ends}"])


def _is_free(row: Sequence[str], start: int, name: str) -> bool:
    return all(cell == " " for cell in row[max(0, start - 1) : start + len(name) + 1])


def _ordinate(report: QualityReport) -> str:
    if report.base is None:
        return "Perplexity"
    return f"Divergence from {report.base} in nats"
