"""`edgechat plan`: which files would be chosen, and why, as text or as JSON.

With --json, one object is printed for one MODEL; for several or none, a list of them, best first:

    model, path, backend ("llama.cpp" or "mlx"), quant, file_bytes, context, cache_type, threads, gpu_layers,
    n_layers, split, experts_in_ram, n_batch, n_ubatch, n_seq_max, n_outputs_max, n_rs_seq, flash_attention
    devices       a list: name ("RAM" or llama.cpp's, or "MLX"), budget_bytes, weights_bytes, cache_bytes,
                  compute_bytes, program_bytes, total_bytes
    exact         whether llama.cpp's allocator computed the sizes; otherwise they are estimated
    draft         the draft model: model, path, quant, file_bytes, context, total_bytes; or null
    ngrams        whether n-grams of the conversation are used for drafting
    no_draft      why there is no drafter, or no draft model; or null
    predicted     decode_tps, prompt_tps, ttft_ms (both for 1,000 tokens), basis
    kl_divergence value, source; or null
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
from edgechat.planner.machine import MachineDescription
from edgechat.planner.placement.budget import RAM
from edgechat.planner.plan import LABELS, LoadPlan, as_json
from edgechat.planner.ranking.ranked_file import RankedFile
from edgechat.planner.ranking.scoring import Verdict
from edgechat.planner.ranking.survey import SurveyFindings, all_models, one_model
from edgechat.planner.request import PlanRequest, with_settings


def run(models: Sequence[str], request: PlanRequest, described: MachineDescription, *, json: bool) -> int:
    """Run the command; return the exit code: 1 where nothing fits. Raises EdgechatError."""
    said = settings.load()
    insists = request.draft is not None
    request = with_settings(request, said)
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        if models:
            found = [
                one_model(name, request, described, offline=said.offline, insists=insists) for name in models
            ]
        else:
            found = [all_models(request, described)]
    if json and models:
        objects = [_object(one.chosen or _smallest(one.options)) for one in found]
        print_json(objects[0] if len(objects) == 1 else objects)
    elif json:
        print_json([_object(option) for option in found[0].options])
    else:
        print("\n\n".join("\n".join(_lines(one)) for one in found))
    return 0 if all(one.chosen for one in found) else 1


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


def _lines(found: SurveyFindings) -> Iterator[str]:
    if found.name is not None:
        yield from _table(list(_ladder(found)))
        yield ""
    elif any(option.plan is not None for option in found.options):
        yield from _catalogue(found)
        yield ""
    yield sheet(_choice(found), bold=styled(sys.stdout))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with their columns aligned; a column that is empty is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield flat(f"{cells[0]} {'  '.join(cells[1:])}".rstrip())


def _ladder(found: SurveyFindings) -> Iterator[tuple[str, ...]]:
    yield " ", "QUANT", "BACKEND", "SIZE", "CONTEXT", "ON GPU", "TOKENS/S", "FIRST", "LOSS", "VERDICT"
    for option in found.options:
        made = option.plan
        by = "MLX" if option.variant.format == "mlx" else ""
        start = (_mark(option, found), option.quant or "?", by, mebibytes(option.variant.size))
        if made is None:
            yield *start, "", "", "", "", "", option.verdict.label
            continue
        cache = "" if made.cache_type == "f16" else f" {made.cache_type}"
        loss = figure(made.kl_divergence.value, 2) if made.kl_divergence else "?"
        yield *start, f"{made.context}{cache}", *_figures(option, made), loss, option.verdict.label


_HEADINGS = {
    Verdict.SLOW: "Slow:",
    Verdict.POOR: "Fits only in a quantization that is too lossy:",
    Verdict.SHORT: "Trained on a shorter context:",
}


def _catalogue(found: SurveyFindings) -> Iterator[str]:
    """Yield one table, with headings between the verdicts; what is too large is told in `_choice`."""
    rows = [(" ", "MODEL", "QUANT", "SIZE", "CTX", "GPU", "TOK/S", "FIRST", "SCORE")]
    fitting = [(option, option.plan) for option in found.options if option.plan is not None]
    for option, made in fitting:
        quality = option.variant.entry.quality if option.variant.entry else None
        size = mebibytes(option.variant.size).replace(" ", "").removesuffix("iB")
        cache = "" if made.cache_type == "f16" else f" {made.cache_type[:2]}"
        context = f"{made.context // 1024}k" if made.context >= 1024 else f"{made.context}"
        start = (_mark(option, found), option.variant.model, option.quant or "?", size, f"{context}{cache}")
        rows.append((*start, *_figures(option, made), f"{quality}" if quality else "?"))
    before = Verdict.FITS
    head, *lines = _table(rows)
    yield head
    for line, (option, _) in zip(lines, fitting, strict=True):
        if option.verdict is not before:
            yield f"  {_HEADINGS[option.verdict]}"
            before = option.verdict
        yield line


def _mark(option: RankedFile, found: SurveyFindings) -> str:
    return "*" if found.chosen is not None and option.variant is found.chosen.variant else " "


def _figures(option: RankedFile, made: LoadPlan) -> tuple[str, str, str]:
    """Return the share of the load that is on accelerators, the tokens a second, the time to the first."""
    taken = sum(one.total_bytes for one in made.memory if one.name != RAM)
    share = f"{100 * taken / max(1, made.total_bytes):.0f}%" if made.gpu_layers else ""
    found = option.predicted
    return share, figure(found.decode_tps), seconds(found.ttft_ms / 1000)


def _choice(found: SurveyFindings) -> Iterator[tuple[str, str]]:
    large = [one for one in found.options if one.plan is None]
    if found.name is None and large:
        yield "Too large", ", ".join(one.variant.model for one in large)
    if found.unread > 0:
        yield "Not examined", f"{found.unread} more files of the repository, which seemed worse choices"
    yield "Machine", found.machine
    chosen = found.chosen
    if chosen is None or chosen.plan is None:
        yield "Choice", f"None of these fit. {_smallest(found.options).why_not}"
        if found.instead is not None:
            name = found.instead.variant.model
            yield "Instead", f"This model fits:\n  edgechat plan {name}"
        else:
            guide = "use the guide, which needs very little memory"
            yield "Instead", f"Close other programs, or {guide}:\n  edgechat run guide"
        return
    made = chosen.plan
    name = found.name or made.model_name
    by = " for MLX" if made.backend == "mlx" else ""
    forced = " --backend mlx" if by and chosen.variant.entry is not None else ""
    here = "" if made.model_path else f", not on this machine yet:\n  edgechat pull {name}{forced}"
    yield "Choice", f"{made.model_name} {made.quant or ''}".rstrip() + by + here
    for note in made.notes:
        yield "Note", note
    yield "Why", "\n".join(made.reasons)
    for other in made.alternatives:
        context = f", context {other.context}" if other.context else ""
        by = f" for {LABELS[other.backend]}" if other.backend != made.backend else ""
        yield "Or", f"{other.model} {other.quant or ''}{by}{context}: {other.why_not}"


def _smallest(options: Sequence[RankedFile]) -> RankedFile:
    return min(options, key=lambda one: one.variant.size)
