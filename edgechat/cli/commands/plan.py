"""`edgechat plan`: which files would be chosen, and why, as text or as JSON.

With --json, one object is printed for one MODEL; for several or none, a list of them, best first:

    model, path, backend ("llama.cpp" or "mlx"), quant, file_bytes, context, cache_type, threads, gpu_layers,
    n_layers, split, experts_in_ram, n_batch, n_ubatch, n_seq_max, n_outputs_max, n_rs_seq, flash_attention
    devices       a list: name ("RAM" or llama.cpp's, or "MLX"), budget_bytes, weights_bytes, cache_bytes,
                  compute_bytes, program_bytes, checkpoint_bytes, projector_bytes,
                  adapter_bytes, total_bytes
    exact         whether llama.cpp's allocator computed the sizes; otherwise, and for projectors, they are
                  estimated
    draft         what drafts from a file of its own: model, kind ("model", "mtp" or "eagle3"), path, quant,
                  file_bytes, context, total_bytes; or null
    mtp           of layers of the model itself that draft: total_bytes (part of what `devices` says) and
                  expected_speedup (times as fast as without); or null
    drafters      the names of all that drafts, as `edgechat run --json` has them
    projector     the file with which the model sees or hears: path, name, vision, audio, device (the
                  accelerator that it is on, or null), image_tokens (of the context, that a picture takes at
                  most), image_batch (those that one call must compute together, or 0), file_bytes,
                  weights_bytes, compute_bytes, host_bytes, total_bytes (at most, all of them); or null
    adapters      the LoRA adapters that are loaded with it, a list: name, path, scale, rank, bytes
    remote        the server that runs the model: name, kind, url and more; or null
    program       the engine that edgechat starts for it: its command and what it is expected to take; or null
    no_vision     why a model that could see or hear is planned without; or null
    ngrams        whether n-grams of the conversation are used for drafting
    no_draft      why there is no drafter, or no draft model; or null
    predicted     decode_tps, prompt_tps, ttft_ms (both for 1,000 tokens), basis; by_depth: a list of depth
                  (tokens before), decode_tps, prompt_tps (of the next 500 tokens)
    kl_divergence value, source, measured (of this file, on this machine); or null
    notes, reasons
    alternatives  a list: model, backend, quant, context, decode_tps (both 0 if it does not fit), why_not
    verdict       "fits"; "slow" (slower than reading speed, or than --min-tps); "too lossy" (noticeably so,
                  or below --quality); "short" (trained on a shorter context than --ctx); or "too large", and
                  then the object has only model, backend, quant, file_bytes, verdict and why_not
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from edgechat import settings
from edgechat.base.text import figure, flat, mebibytes, seconds
from edgechat.cli.output.layout import sheet, styled
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import print_json
from edgechat.planner.estimate.budget import RAM
from edgechat.planner.machine import MachineDescription
from edgechat.planner.plan import LABELS, LoadPlan, as_json
from edgechat.planner.prepare import all_models, one_model
from edgechat.planner.ranking.ranking import RankedFile, SurveyFindings, Verdict
from edgechat.planner.request import PlanRequest, with_settings


def run(models: Sequence[str], request: PlanRequest, described: MachineDescription, *, json: bool) -> int:
    """Run the command; return the exit code: 1 where nothing fits. Raises EdgechatError."""
    current = settings.load()
    offline, insists = current.offline, request.draft is not None
    request = with_settings(request, current)
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        if models:
            surveys = [
                one_model(name, request, described, offline=offline, insists=insists) for name in models
            ]
        else:
            surveys = [all_models(request, described)]
    if json and models:
        objects = [_object(survey.chosen or _smallest(survey.options)) for survey in surveys]
        print_json(objects[0] if len(objects) == 1 else objects)
    elif json:
        print_json([_object(option) for option in surveys[0].options])
    else:
        print("\n\n".join("\n".join(_lines(survey)) for survey in surveys))
    return 0 if all(survey.chosen for survey in surveys) else 1


def _object(option: RankedFile) -> dict[str, Any]:
    if option.plan is None:
        return {
            "model": option.variant.model,
            "backend": option.variant.backend,
            "quant": option.quant,
            "file_bytes": option.variant.size,
            "verdict": option.verdict.label,
            "why_not": option.why_not,
        }
    return as_json(option.plan) | {"verdict": option.verdict.label}


def _lines(survey: SurveyFindings) -> Iterator[str]:
    if survey.name is not None:
        yield from _table(list(_ladder(survey)))
        yield ""
    elif any(option.plan is not None for option in survey.options):
        yield from _catalogue(survey)
        yield ""
    yield sheet(_choice(survey), bold=styled(sys.stdout))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with their columns aligned; a column that is empty is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield flat(f"{cells[0]} {'  '.join(cells[1:])}".rstrip())


def _ladder(survey: SurveyFindings) -> Iterator[tuple[str, ...]]:
    yield " ", "QUANT", "BACKEND", "SIZE", "CONTEXT", "ON GPU", "SEES", "TOKENS/S", "FIRST", "LOSS", "VERDICT"
    for option in survey.options:
        plan = option.plan
        by = "MLX" if option.variant.format == "mlx" else ""
        start = (_mark(option, survey), option.quant or "?", by, mebibytes(option.variant.size))
        if plan is None:
            yield *start, "", "", "", "", "", "", option.verdict.label
            continue
        cache = "" if plan.cache_type == "f16" else f" {plan.cache_type}"
        loss = figure(plan.kl_divergence.value, 2) if plan.kl_divergence else "?"
        share, *speeds = _figures(option, plan)
        where = (plan.projector.device or RAM) if plan.projector is not None else ""
        yield *start, f"{plan.context}{cache}", share, where, *speeds, loss, option.verdict.label


_HEADINGS = {
    Verdict.SLOW: "Slow:",
    Verdict.POOR: "Fits only in a quantization that is too lossy:",
    Verdict.SHORT: "Trained on a shorter context:",
}


def _catalogue(survey: SurveyFindings) -> Iterator[str]:
    """Yield one table, with headings between the verdicts; `_choice` lists what is too large."""
    rows = [(" ", "MODEL", "QUANT", "SIZE", "CTX", "GPU", "TOK/S", "FIRST", "SCORE")]
    fitting = [(option, option.plan) for option in survey.options if option.plan is not None]
    for option, plan in fitting:
        quality = option.variant.entry.quality if option.variant.entry else None
        size = mebibytes(option.variant.size).replace(" ", "").removesuffix("iB")
        cache = "" if plan.cache_type == "f16" else f" {plan.cache_type[:2]}"
        context = f"{plan.context // 1024}k" if plan.context >= 1024 else f"{plan.context}"
        start = (_mark(option, survey), option.variant.model, option.quant or "?", size, f"{context}{cache}")
        rows.append((*start, *_figures(option, plan), f"{quality}" if quality else "?"))
    before = Verdict.FITS
    head, *lines = _table(rows)
    yield head
    for line, (option, _) in zip(lines, fitting, strict=True):
        if option.verdict is not before:
            yield f"  {_HEADINGS[option.verdict]}"
            before = option.verdict
        yield line


def _mark(option: RankedFile, survey: SurveyFindings) -> str:
    return "*" if survey.chosen is not None and option.variant is survey.chosen.variant else " "


def _figures(option: RankedFile, plan: LoadPlan) -> tuple[str, str, str]:
    """Return the share of the load that is on accelerators, tokens per second, and time to first token."""
    on_gpu = sum(memory.total_bytes for memory in plan.memory if memory.name != RAM)
    share = f"{100 * on_gpu / max(1, plan.total_bytes):.0f}%" if plan.gpu_layers else ""
    return share, figure(option.predicted.decode_tps), seconds(option.predicted.ttft_ms / 1000)


def _choice(survey: SurveyFindings) -> Iterator[tuple[str, str]]:
    too_large = [option.variant.model for option in survey.options if option.plan is None]
    if survey.name is None and too_large:
        yield "Too large", ", ".join(too_large)
    if survey.unread > 0:
        yield "Not examined", f"{survey.unread} more files of the repository, which seemed worse choices"
    yield "Machine", survey.machine
    chosen = survey.chosen
    if chosen is None or chosen.plan is None:
        yield "Choice", f"None of these fit. {_smallest(survey.options).why_not}"
        if survey.instead is not None:
            yield "Instead", f"This model fits:\n  edgechat plan {survey.instead.variant.model}"
        else:
            guide = "use the guide, which needs very little memory"
            yield "Instead", f"Close other programs, or {guide}:\n  edgechat run guide"
        return
    plan = chosen.plan
    name = survey.name or plan.model_name
    by = " for MLX" if plan.backend == "mlx" else ""
    forced = " --backend mlx" if by and chosen.variant.entry is not None else ""
    here = "" if plan.model_path else f", not on this machine yet:\n  edgechat pull {name}{forced}"
    yield "Choice", f"{plan.model_name} {plan.quant or ''}".rstrip() + by + here
    for note in plan.notes:
        yield "Note", note
    yield "Why", "\n".join(plan.reasons)
    for other in plan.alternatives:
        context = f", context {other.context}" if other.context else ""
        by = f" for {LABELS[other.backend]}" if other.backend != plan.backend else ""
        yield "Or", f"{other.model} {other.quant or ''}{by}{context}: {other.why_not}"


def _smallest(options: Sequence[RankedFile]) -> RankedFile:
    return min(options, key=lambda option: option.variant.size)
