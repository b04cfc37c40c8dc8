"""`edgechat plan`: what would be chosen, from which files, and why; for people and for programs.

With --json one MODEL gives one object, several or none a list of them, best first:

    model, path, quant, file_bytes, context, cache_type, threads, gpu_layers, n_layers, split, experts_in_ram,
    n_batch, n_ubatch, n_seq_max, n_outputs_max, n_rs_seq, flash_attention
    devices       a list: name ("RAM" or llama.cpp's), budget_bytes, weights_bytes, cache_bytes,
                  compute_bytes, program_bytes, total_bytes
    exact         whether llama.cpp's own allocator said so; else it is estimated
    draft         null: none is used
    predicted     decode_tps, prompt_tps, ttft_ms (both for 1,000 tokens), basis
    kl_divergence value, source; or null
    notes, reasons, alternatives (model, quant, context, decode_tps, why_not)
    verdict       "fits", "slow", "loses much"; "too large" objects have only model, verdict and why_not
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgechat import settings
from edgechat.cli.sheet import sheet, styled
from edgechat.cli.status import StatusLine
from edgechat.planner.machine import Described
from edgechat.planner.plan import LoadPlan, as_json
from edgechat.planner.select import Option
from edgechat.planner.survey import Found, all_models, one_model
from edgechat.planner.wishes import NO_WISHES, Wishes
from edgechat.text import escaped_json, mebibytes, printable


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    models: tuple[str, ...] = ()
    described: Described = field(default_factory=Described)
    wishes: Wishes = NO_WISHES
    offline: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Run the command; return the exit code: 1 where nothing fits. Raises EdgechatError."""
    status = StatusLine(sys.stderr)
    status.show("looking at this machine")
    offline = options.offline or settings.load().offline
    try:
        if options.models:
            found = [
                one_model(name, options.wishes, options.described, offline=offline) for name in options.models
            ]
        else:
            found = [all_models(options.wishes, options.described)]
    finally:
        status.clear()
    if options.json:
        print(escaped_json(json.dumps(_as_json(found, options), ensure_ascii=False)))
    else:
        print("\n\n".join("\n".join(_lines(one)) for one in found))
    return 0 if all(one.chosen for one in found) else 1


def _as_json(found: Sequence[Found], options: Options) -> Any:
    if not options.models:
        return [_object(one) for one in found[0].options]
    objects = [_object(one.chosen or one.options[0]) for one in found]
    return objects[0] if len(objects) == 1 else objects


def _object(option: Option) -> dict[str, Any]:
    if option.plan is None:
        return {
            "model": option.variant.model,
            "quant": option.variant.quant,
            "file_bytes": option.variant.size,
            "verdict": option.verdict.label,
            "why_not": option.why_not,
        }
    return as_json(option.plan) | {"verdict": option.verdict.label}


def _lines(found: Found) -> Iterator[str]:
    rows = list(_catalogue(found) if found.name is None else _ladder(found))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield printable("  ".join(cells).rstrip())
    yield ""
    yield sheet(_choice(found), bold=styled(sys.stdout))


def _ladder(found: Found) -> Iterator[tuple[str, ...]]:
    yield " ", "QUANT", "SIZE", "CONTEXT", "SPLIT", "TOKENS/S", "FIRST", "LOSS", "VERDICT"
    for option in found.options:
        made = option.plan
        mark = "*" if found.chosen is not None and option.variant is found.chosen.variant else " "
        start = (mark, option.variant.quant or "?", mebibytes(option.variant.size))
        if made is None:
            yield *start, "", "", "", "", "", option.verdict.label
            continue
        loss = f"{made.kl_divergence.value:.4f}" if made.kl_divergence else "?"
        yield *start, *_figures(made), loss, option.verdict.label


def _catalogue(found: Found) -> Iterator[tuple[str, ...]]:
    yield " ", "MODEL", "QUANT", "SIZE", "CONTEXT", "SPLIT", "TOKENS/S", "FIRST", "QUALITY", "VERDICT"
    for option in found.options:
        made = option.plan
        mark = "*" if found.chosen is not None and option.variant is found.chosen.variant else " "
        quality = option.variant.entry.quality if option.variant.entry else None
        start = (mark, option.variant.model, option.variant.quant or "?", mebibytes(option.variant.size))
        figures = _figures(made) if made is not None else ("", "", "", "")
        yield *start, *figures, f"{quality}" if quality else "?", option.verdict.label


def _figures(made: LoadPlan) -> tuple[str, str, str, str]:
    cache = "" if made.cache_type == "f16" else f" {made.cache_type}"
    split = f"{made.gpu_layers}/{made.n_layers + 1}" if made.gpu_layers else "CPU"
    if made.experts_in_ram:
        split += f" e{made.experts_in_ram}"
    assert made.predicted is not None
    first = f"{made.predicted.ttft_ms / 1000:.2g} s" if made.predicted.ttft_ms < 1e5 else "minutes"
    return f"{made.context}{cache}", split, f"{made.predicted.decode_tps:.3g}", first


def _choice(found: Found) -> Iterator[tuple[str, str]]:
    yield "Machine", found.machine
    chosen = found.chosen
    if chosen is None or chosen.plan is None:
        yield "Choice", f"None of these fits. {found.options[0].why_not}"
        if found.instead is not None:
            yield (
                "Instead",
                f"{found.instead.variant.model} fits: edgechat plan {found.instead.variant.model}",
            )
        return
    made = chosen.plan
    here = "" if made.model_path else ", which is not on this machine yet"
    yield "Choice", f"{made.model_name} {made.quant or ''}".rstrip() + here
    for note in made.notes:
        yield "Note", note
    yield "Why", "\n".join(made.reasons)
    for other in made.alternatives:
        context = f", context {other.context}" if other.context else ""
        yield "Or", f"{other.model} {other.quant or ''}{context}: {other.why_not}"
