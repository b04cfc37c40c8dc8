"""Output of `edgechat bench --quality`: a table, a plot, or JSON as described in `commands/bench.py`."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgechat.base.text import figure, flat, mebibytes, printable
from edgechat.bench.divergence import Estimate
from edgechat.bench.quality import MeasuredModel, QualityReport, QualityRequest, measure_quality
from edgechat.cli import plots
from edgechat.cli.terminal_io import WIDTH, StatusLine, note, print_json, sheet, styled, table

_TERMINAL = Path("-")


def run(request: QualityRequest, *, plot_file: Path | None, json: bool) -> None:
    """Run the command. plot_file: path for the plot, or '-' for the terminal. Raises EdgechatError."""
    if plot_file is not None and plot_file != _TERMINAL:
        example = "--plot quality.svg, or --plot - for the terminal"
        plots.check(plot_file, plots.QUALITY_KINDS, example)
    try:
        with StatusLine(sys.stderr) as status:
            report = measure_quality(request, status.show)
    except KeyboardInterrupt:
        note("Interrupted. The chunks that were scored are kept; to resume, run the same command again.")
        raise
    if json:
        print_json(_object(report))
    else:
        print(_sheet(report))
    if plot_file == _TERMINAL and not json:
        print(f"\n{plots.quality_text(report)}")
    elif plot_file is not None:
        plots.draw_quality(report, plot_file)
        if not json:
            print(f"\nPlot written to {flat(str(plot_file))}")


def _sheet(report: QualityReport) -> str:
    head = sheet(_head(report), bold=styled(sys.stdout), width=7)
    notes = "\n".join(line for text in _notes(report) for line in textwrap.wrap(text, WIDTH))
    return "\n\n".join([head, *map(printable, _tables(report)), notes])


def _head(report: QualityReport) -> Iterator[tuple[str, str]]:
    yield "Model", report.title
    n_tokens = f"{report.models[0].figures.n_tokens:,}"
    yield "Text", f"{report.n_chunks} chunks of {report.n_ctx} tokens; {n_tokens} scored (second halves)"


def _notes(report: QualityReport) -> Iterator[str]:
    if report.base is None:
        yield (
            "Nothing was compared: to see what a quantization loses, a more exact file of the same model is "
            "needed. Download one (edgechat pull MODEL:Q8_0), or name one with --against."
        )
        return
    yield f"Divergence: how far predictions are from {report.base}'s, in nats per token; 0 is no loss."
    if any(one.is_chosen for one in report.models):
        yield "*: what this machine would run."
    if len(report.models) > 2:
        yield "Front: no other file as small (size), or as fast (speed), loses less."


def _tables(report: QualityReport) -> Iterator[str]:
    """Yield the table in parts that are narrow enough for the terminal, each with the models' names."""
    names, columns = _columns(report)
    part: list[tuple[str, ...]] = []
    for column in columns:
        wider = table(list(zip(*names, *part, column, strict=True)))
        if part and max(map(len, wider.splitlines())) > WIDTH:
            yield table(list(zip(*names, *part, strict=True)))
            part = []
        part.append(column)
    yield table(list(zip(*names, *part, strict=True)))


def _columns(report: QualityReport) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return two lists of columns: first those that identify the models, then those with figures."""
    rows = [("", "", "SIZE", "TOKENS/S", "PERPLEXITY", "DIVERGENCE", "MEDIAN", "99.9 %", "SAME TOP", "FRONT")]
    fronts = report_fronts(report)
    for one in report.models:
        loss = one.figures.divergence
        texts = ("base" if one.is_base and report.base else "", "", "", "")
        if loss is not None:
            same = Estimate(100 * loss.same_top.value, 100 * loss.same_top.error)
            texts = (
                with_error(loss.mean),
                figure(loss.median.value, 2),
                figure(loss.tail.value, 2),
                f"{with_error(same)} %",
            )
        rows.append(
            (
                "*" if one.is_chosen else "",
                one.model.label,
                mebibytes(one.model.model.size),
                figure(one.tokens_per_second),
                with_error(one.figures.perplexity),
                *texts,
                ", ".join(fronts[one.model.label]) if len(report.models) > 2 else "",
            )
        )
    marks, labels, *columns = zip(*rows, strict=True)
    names = [marks, labels] if any(marks) else [labels]
    return names, [column for column in columns if any(column[1:])]


def with_error(estimate: Estimate) -> str:
    """Return a figure with its standard error, rounded to two digits: '0.03124 ± 0.00041'."""
    if not estimate.error > 0:
        return figure(estimate.value)
    digits = max(0, 1 - math.floor(math.log10(estimate.error)))
    return f"{estimate.value:.{digits}f} ± {estimate.error:.{digits}f}"


def report_fronts(report: QualityReport) -> dict[str, list[str]]:
    """Return which Pareto fronts ('size', 'speed') each model is on, keyed by label."""
    fronts: dict[str, list[str]] = {one.model.label: [] for one in report.models}
    for name, _, value, sign in plots.AXES:
        for one in plots.front(report.models, value, sign):
            fronts[one.model.label].append(name)
    return fronts


def _object(report: QualityReport) -> dict[str, Any]:
    fronts = report_fronts(report)
    return {
        "context": report.n_ctx,
        "chunks": report.n_chunks,
        "tokens": report.models[0].figures.n_tokens,
        "base": report.base,
        "models": [_model_object(one, fronts[one.model.label]) for one in report.models],
    }


def _model_object(one: MeasuredModel, fronts: Sequence[str]) -> dict[str, Any]:
    plan = one.model.plan
    return {
        "model": one.model.model.name,
        "path": plan.model_path,
        "quant": plan.quant,
        "cache_type": plan.cache_type,
        "backend": plan.backend,
        "bytes": one.model.model.size,
        "tokens_per_second": one.tokens_per_second,
        "is_base": one.is_base,
        "is_chosen": one.is_chosen,
        "on_front": list(fronts),
        "perplexity": msgspec.to_builtins(one.figures.perplexity),
        "divergence": msgspec.to_builtins(one.figures.divergence),
    }
