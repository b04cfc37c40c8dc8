"""`edgechat bench`: measure a model on this machine, with and without drafts.

With --json, one object is printed:

    model, backend, quant, architecture, context, threads, gpu_layers
    load_ms, first_token_ms, prompt_tokens
    memory            planned_bytes, resident_bytes, buffers
    depths            a list: depth, prompt_tps, decode_tps (measured in a bare llama.cpp loop)
    attention         "flash" or "plain", or null if there is no choice
    other_depths      `depths` with the other kind of attention; empty if the model does not load with it
    cost              depth, ms (time per call, keyed by number of tokens), draft_ms (time to draft one token)
    drafters, no_draft
    ways              a list: task, name, tps, of_plain (tps relative to plain decoding), rounds (a list of
                      tokens per second), drafted, accepted

For a model on another server or in another program, the object has model, backend, context, first_token_ms
and decode_tps (medians), and rounds, a list with ttft_ms and decode_tps.

With --quality, the object has other keys. Each figure has a value and an error; divergences are in nats:

    context, chunks   tokens per chunk, and number of chunks
    tokens            how many tokens were scored
    base              the model that the others were compared with, or null
    models            a list: model, path, quant, cache_type, backend, bytes, tokens_per_second, is_base,
                      is_chosen, on_front ("size", "speed"), perplexity, and divergence, which is null or
                      has mean, median, tail (99.9 %), same_top, log_ratio and base_perplexity
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from edgechat import settings
from edgechat.base.errors import OptionWithoutEffect
from edgechat.base.text import flat, mebibytes
from edgechat.cli import completion
from edgechat.cli.declaring import Number, argument, command, option
from edgechat.cli.options import MOST, anyway_option, backend_option, draft_option, workers_option
from edgechat.cli.terminal_io import StatusLine, print_json, sheet, styled, table
from edgechat.cli.values import cache_types, runs_elsewhere
from edgechat.models.remote.model import KINDS

if TYPE_CHECKING:
    from edgechat.bench.speed import AtDepth, BenchReport, DecodingRun
    from edgechat.planner.plan import LoadPlan
    from edgechat.planner.request import PlanRequest


@command("bench", offline=True)
@argument(
    "models",
    nargs=-1,
    required=True,
    metavar="MODEL",
    help="A GGUF file, an MLX folder, or a name shown by `edgechat list`; several with --quality.",
    complete=completion.local_models,
)
@option(
    "--ctx",
    type=Number(int, min=512, max=MOST),
    help="Context length, in tokens; with --quality, the tokens of a chunk (512).",
)
@draft_option
@backend_option
@workers_option
@option(
    "--rounds",
    type=Number(int, min=1, max=100),
    default=5,
    help="How many times each way of decoding is measured.",
)
@option("--tokens", type=Number(int, min=8, max=1024), default=48, help="Tokens generated in each round.")
@option(
    "--quality",
    is_flag=True,
    help="Measure what quantizations lose instead: perplexity, and the divergence from the most "
    "exact file of the same model.",
)
@option(
    "--against",
    metavar="QUANT|MODEL",
    help="With --quality: what to compare with.",
    complete=completion.local_models,
)
@option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --quality: the text to predict. Default: one in many languages, with code and chats.",
    complete=completion.paths,
)
@option(
    "--chunks",
    type=Number(int, min=0, max=MOST),
    help="With --quality: how much of the text; 0 for all. Default: 64.",
)
@option("--cache-type", metavar="q8_0,q4_0", help="With --quality: types of KV cache to measure beside f16.")
@option(
    "--base-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --quality: compare with predictions in a file, by --save-base or llama-perplexity.",
    complete=completion.paths,
)
@option(
    "--save-base",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --quality: store the predictions of the base, or of the only model, in a file.",
    complete=completion.paths,
)
@option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw the results as a PNG file; with --quality SVG too, or - for the terminal.",
    complete=completion.paths,
)
@option("--json", is_flag=True, help="Print one JSON object.")
@anyway_option
def bench(
    models: tuple[str, ...],
    ctx: int | None,
    draft: str | None,
    backend: Literal["llama.cpp", "mlx"] | None,
    workers: tuple[str, ...] | None,
    rounds: int,
    tokens: int,
    quality: bool,
    against: str | None,
    text: Path | None,
    chunks: int | None,
    cache_type: str | None,
    base_file: Path | None,
    save_base: Path | None,
    plot: Path | None,
    json: bool,
    load_anyway: bool,
) -> None:
    """Measure a model on this machine: speed, memory and drafts, or what its quantizations lose."""
    from edgechat.bench.speed import BenchTask, measure
    from edgechat.cli import plots
    from edgechat.planner.fallback import refit
    from edgechat.planner.prepare import prepare
    from edgechat.planner.request import PlanRequest

    # No projector is loaded, since only text is measured.
    request = PlanRequest(draft=draft, backend=backend, vision=False, workers=workers, anyway=load_anyway)
    if quality:
        from edgechat.bench.quality import QualityRequest
        from edgechat.cli import quality_report

        for name in filter(runs_elsewhere, models):
            reason = f"{name} does not return the logits that this needs"
            raise click.BadParameter(reason, param_hint="--quality")
        for option, given in (("--against", against), ("--text", text), ("--save-base", save_base)):
            if base_file is not None and given is not None:
                raise click.BadParameter("cannot be used together with --base-file", param_hint=option)
        wish = QualityRequest(
            names=models,
            plan=request,
            n_ctx=512 if ctx is None else ctx,
            n_chunks=64 if chunks is None else chunks,
            against=against,
            text=text,
            cache_types=cache_types(cache_type),
            base_file=base_file,
            save_base=save_base,
        )
        quality_report.run(wish, plot_file=plot, json=json)
        return
    needing = {
        "--against": against,
        "--text": text,
        "--chunks": chunks,
        "--cache-type": cache_type,
        "--base-file": base_file,
        "--save-base": save_base,
    }
    for option, value in needing.items():
        if value is not None:
            raise click.BadParameter("applies only with --quality", param_hint=option)
    if len(models) > 1:
        raise click.BadParameter("one at a time; several with --quality", param_hint="MODEL")
    model, request = models[0], msgspec.structs.replace(request, context=ctx)
    if runs_elsewhere(model):
        _through_a_server(model, request, rounds=rounds, tokens=tokens, plot_file=plot, json=json)
        return
    if plot is not None:
        plots.check(plot)
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine and the model's header")
        plan, notes = refit(prepare(model, request))
        report = measure(BenchTask(plan, rounds, tokens), status.show)
    if plot is not None:
        plots.draw(report, plan.model_name, plot)
    if json:
        print_json(_object(report, plan))
    else:
        print(sheet(_rows(report, plan, notes), bold=styled(sys.stdout), width=13))
        if plot is not None:
            print(f"\nPlot written to {flat(str(plot))}")


def _through_a_server(
    model: str, request: PlanRequest, *, rounds: int, tokens: int, plot_file: Path | None, json: bool
) -> None:
    """Measure the time to first token and the speed of a model on another server."""
    import asyncio

    from edgechat.cli.commands.remote import answered
    from edgechat.engine.remote.choice import remote_plan
    from edgechat.planner.prepare import prepare

    if plot_file is not None:
        raise OptionWithoutEffect(
            "--plot has no effect here: there is only one way of decoding.", hint="Omit it."
        )
    config = settings.load()
    request = msgspec.structs.replace(request, vision=True)  # the user did not ask to leave it out
    with StatusLine(sys.stderr) as status:
        plan = remote_plan(model, config, request) or prepare(model, request)
        plan, timings = asyncio.run(answered(plan, config, tokens, rounds, status.show))
    ttft = statistics.median(one.ttft_ms for one in timings)
    tps = statistics.median(one.decode_tps for one in timings)
    assert plan.remote is not None
    backend = KINDS[plan.remote.kind]
    if json:
        each = [{"ttft_ms": one.ttft_ms, "decode_tps": one.decode_tps} for one in timings]
        median = {"first_token_ms": ttft, "decode_tps": tps}
        print_json(
            {"model": plan.model_name, "backend": backend, "context": plan.context, **median, "rounds": each}
        )
        return
    rows = [("answer", "first token", "tokens/s")]
    rows += [(f"{n}", f"{one.ttft_ms:.0f} ms", f"{one.decode_tps:.1f}") for n, one in enumerate(timings, 1)]
    rows.append(("median", f"{ttft:.0f} ms", f"{tps:.1f}"))
    lines = [
        ("Model", plan.model_name),
        *(("Note", text) for text in plan.notes),
        ("Speed", table(rows, indent="  ")),
    ]
    print(sheet(lines, bold=styled(sys.stdout), width=13))


def _rows(report: BenchReport, plan: LoadPlan, notes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    layers = f"{plan.gpu_layers} layers on {', '.join(plan.devices)}, " if plan.devices else ""
    yield "Model", f"{plan.model_name} {plan.quant or ''} ({report.architecture})".replace("  ", " ")
    by = "MLX" if plan.backend == "mlx" else f"{plan.threads} threads"
    yield "Load", f"context {plan.context}, {layers}{by}, in {report.load_ms / 1000:.1f} s"
    for text in notes:
        yield "", text
    real = f"the process takes {mebibytes(report.resident_bytes)}"
    yield "Memory", f"{mebibytes(plan.total_bytes)} planned; {real}" if plan.total_bytes else real
    yield "First token", f"{report.ttft_ms:.0f} ms after a prompt of {report.prompt_tokens} tokens"
    yield "", ""
    yield "Speed", table(_speeds(report), indent="  ")
    yield "", ""
    yield "Calls", table(_calls(report), indent="  ")
    yield "", ""
    yield "Drafts", ", ".join(report.drafters) or report.no_draft or "no drafter"
    if report.drafters and report.no_draft:
        yield "", report.no_draft
    yield "Decoding", table(_ways(report), indent="  ")


def _speeds(report: BenchReport) -> list[tuple[str, ...]]:
    others = {at.depth: at for at in report.other_depths}
    rows = [(f"{at.depth} tokens", *_speed(at), *_speed(others.get(at.depth))) for at in report.depths]
    heading = ("behind", "reads", "writes")
    if not others:
        return [heading, *(row[:3] for row in rows)]
    return [(*heading, f"reads, {report.other_attention} attention", "writes"), *rows]


def _speed(at: AtDepth | None) -> tuple[str, str]:
    """Return the speed of prefill and the speed of decoding, as text."""
    return (f"{at.prompt_tps:.0f} tokens/s", f"{at.decode_tps:.1f} tokens/s") if at is not None else ("", "")


def _calls(report: BenchReport) -> list[tuple[str, ...]]:
    """Return C(n) as table rows: the time per call with n tokens, in ms and relative to one token."""
    first = report.curve_ms.get(1, 0.0)
    rows = [("rows", *(str(n) for n in report.curve_ms))]
    rows.append(("ms", *(f"{ms:.1f}" for ms in report.curve_ms.values())))
    if first > 0:
        rows.append(("of one", *(f"{ms / first:.2f}" for ms in report.curve_ms.values())))
    return rows


def _ways(report: BenchReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("task", "way", "tokens/s", "of plain", "accepted drafts")]
    for way in report.ways:
        accepted = f"{way.accepted} of {way.drafted}" if way.drafted else ""
        ratio = _of_plain(report, way)
        rows.append((way.task, way.name, f"{way.rate:.1f}", f"{ratio:.2f}" if ratio else "", accepted))
    return rows


def _of_plain(report: BenchReport, way: DecodingRun) -> float | None:
    from edgechat.bench.speed import PLAIN

    plain = next((run.rate for run in report.ways if (run.task, run.name) == (way.task, PLAIN)), 0.0)
    return way.rate / plain if plain > 0 and way.name != PLAIN and way.rate > 0 else None


def _object(report: BenchReport, plan: LoadPlan) -> dict[str, Any]:
    return {
        "model": plan.model_name,
        "backend": plan.backend,
        "quant": plan.quant,
        "architecture": report.architecture,
        "context": plan.context,
        "threads": plan.threads,
        "gpu_layers": plan.gpu_layers,
        "load_ms": report.load_ms,
        "first_token_ms": report.ttft_ms,
        "prompt_tokens": report.prompt_tokens,
        "memory": {
            "planned_bytes": plan.total_bytes,
            "resident_bytes": report.resident_bytes,
            "buffers": msgspec.to_builtins(report.buffers),
        },
        "depths": msgspec.to_builtins(report.depths),
        "attention": report.attention,
        "other_depths": msgspec.to_builtins(report.other_depths),
        "cost": {"depth": report.curve_depth, "ms": report.curve_ms, "draft_ms": report.draft_ms},
        "drafters": list(report.drafters),
        "no_draft": report.no_draft or None,
        "ways": [
            {
                "task": way.task,
                "name": way.name,
                "tps": way.rate,
                "of_plain": _of_plain(report, way),
                "rounds": list(way.rates),
                "drafted": way.drafted,
                "accepted": way.accepted,
            }
            for way in report.ways
        ],
    }
