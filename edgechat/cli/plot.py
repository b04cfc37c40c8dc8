"""Plots of a report: speed by depth, the cost of a call with n tokens, and the ways of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgechat.base.errors import NotDrawn
from edgechat.base.process.spawn import frozen
from edgechat.bench.speed import CEILING, PLAIN, BenchReport


def draw(report: BenchReport, title: str, path: Path) -> None:
    """Write a PNG. Raises NotDrawn."""
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
        rates = [way.rate for way in report.ways if way.name == name]  # in the order of the tasks
        places = [at + number * width for at in range(len(tasks))]
        colour = {CEILING: "lightgrey", PLAIN: "grey"}.get(name)
        right.bar(places, rates, width, label=name, color=colour)
    right.set_xticks([at + width * (len(names) - 1) / 2 for at in range(len(tasks))], tasks)
    right.set(ylabel="tokens per second", title="Ways of decoding")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=len(names))
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise NotDrawn(f"{path} cannot be written: {error.strerror or error}.") from error


def check(path: Path, kinds: Sequence[str] = (".png",), example: str = "--plot bench.png") -> None:
    """Check, before anything is measured, that a plot of these kinds can be drawn. Raises NotDrawn."""
    if path.suffix.lower() not in kinds:
        raise NotDrawn(
            f"{path} does not say what to draw: it ends in none of {', '.join(kinds)}.",
            hint=f"For example: {example}",
        )
    figure_of()
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise NotDrawn(f"{path} cannot be written: it is a folder, or its folder does not exist.")


def figure_of(width: float = 10) -> Any:
    """Return an empty figure, so many inches wide. Raises NotDrawn where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure  # half a second, and not everybody has it
    except ImportError as error:
        raise NotDrawn(
            "Plots require matplotlib, which is not installed.",
            hint="--json prints the same figures; the packaged program does not include matplotlib."
            if frozen()
            else "pip install 'edgechat[plot]'",
        ) from error
    return Figure(figsize=(width, 4), layout="constrained")
