"""`edgechat show`: a model's header, where it is stored, and how it would be loaded here.

With --json, one object is printed, or a list if the name matches several files:

    name, full_name, model, title, description
    architecture, parameters, layers, heads, kv_heads, head_length, experts, experts_used, vocabulary
    context, window (tokens; 0: none), format ("gguf" or "mlx"), quant, bits_per_weight
    licence, template, thinking, size, files, place, repository, last_used
    plan    as in `edgechat plan --json`; null if the model does not fit, and why_not says why
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edgechat import settings
from edgechat.base.errors import DoesNotFit
from edgechat.base.text import ago, figure, flat, mebibytes, one_line
from edgechat.cli.output.layout import sheet, styled
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import print_json
from edgechat.models.formats.header import ModelHeader
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.resolve import located
from edgechat.models.local.usage import ModelUse, use_of
from edgechat.planner.draft_plan import with_draft
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.machine import Machine, look
from edgechat.planner.plan import LoadPlan, as_json
from edgechat.planner.plan_model import plan_variant
from edgechat.planner.ranking.candidates import of_local
from edgechat.planner.request import DEFAULT_REQUEST, with_settings

_THINKING = {
    "none": "does not think",
    "always": "always thinks first",
    "default-on": "thinks first by default; --no-think switches it off",
    "default-off": "answers directly by default; --think lets it think first",
}


@dataclass(frozen=True, slots=True)
class ShownModel:
    """Everything that is said of a model."""

    model: LocalModel
    header: ModelHeader
    use: ModelUse | None
    plan: LoadPlan | None
    why_not: str = ""


def run(name: str, *, json: bool) -> None:
    """Run the command. Raises EdgechatError."""
    with StatusLine(sys.stderr) as status, DryRun() as dry:
        status.show("reading the header")
        machine = Machine(look(dry), history=Calibration.read(), dry=dry)
        found = [_shown(one, machine) for one in located(name)]
    if json:
        objects = [_object(one) for one in found]
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        print("\n\n".join(sheet(_rows(one), bold=styled(sys.stdout), width=14) for one in found))


def _shown(one: LocalModel, machine: Machine) -> ShownModel:
    variant, request = of_local(one), with_settings(DEFAULT_REQUEST, settings.load())
    header, use = variant.header(), use_of(one.path)
    try:
        made = plan_variant(variant, machine, request)
        made = with_draft(made, variant, machine, request, insists=False)
    except DoesNotFit as error:
        return ShownModel(one, header, use, None, error.message)
    return ShownModel(one, header, use, made)


def _rows(one: ShownModel) -> Iterator[tuple[str, str]]:
    model, header = one.model, one.header
    yield "Model", _title(one)
    if model.entry is not None:
        yield "", model.entry.description
    name, full = flat(model.name), flat(model.full_name)
    yield "Name", name if full == name else f"{name}, or {full}"
    size = f"{_count(header.n_params)} parameters, {header.n_layers} layers"
    yield "Architecture", f"{flat(header.architecture)}, {size}"
    yield "Attention", _attention(header)
    experts = header.number("expert_count", 0)
    if experts:
        yield "Experts", f"{header.number('expert_used_count', 0)} of {experts} for each token"
    window = (
        f", with a sliding window of {header.sliding_window} in some layers" if header.sliding_window else ""
    )
    yield "Context", f"{header.context_length} tokens{window}"
    quant = model.quant or header.quant or "unknown"
    tool = " for MLX" if header.format == "mlx" else ""
    yield "Quantization", f"{quant}{tool}, {_bits(header):.1f} bits per weight"
    yield "Licence", _licence(one) or "not stated"
    yield "Template", "its own" if header.chat_template else "none; ChatML is used"
    if model.entry is not None:
        yield "Thinking", _THINKING[model.entry.thinking]
    yield "Where", _where(one)
    yield (
        "Files",
        "\n".join([mebibytes(model.size), *(f"  {flat(str(file.path))}" for file in model.found.files)]),
    )
    if one.use is not None:
        yield "Last used", "loaded now" if one.use.is_loaded else ago(time.time() - one.use.when)
    yield "Plan", _plan(one)


def _title(one: ShownModel) -> str:
    return one_line(one.header.name or one.model.path.name)


def _licence(one: ShownModel) -> str | None:
    if one.header.licence:
        return one_line(one.header.licence)
    return one.model.entry.licence if one.model.entry is not None else None


def _attention(header: ModelHeader) -> str:
    heads, kv = max(header.heads, default=0), max(header.kv_heads, default=0)
    without = sum(1 for n in header.kv_heads if not n)
    text = f"{heads} heads of {header.key_length} channels, {kv} for keys and values"
    return f"{text}; {without} layers have none" if without else text


def _bits(header: ModelHeader) -> float:
    return 8 * header.weights_bytes / max(1, header.n_params)


def _where(one: ShownModel) -> str:
    found = one.model.found
    source = f", {found.repo}" if found.repo else f", {', '.join(found.tags)}" if found.tags else ""
    return flat(f"{found.place.value}{source}")


def _plan(one: ShownModel) -> str:
    """Return the plan in two lines."""
    made = one.plan
    if made is None or made.predicted is None:
        return one.why_not
    where = f"{made.gpu_layers} of {made.n_layers + 1} layers on GPUs" if made.gpu_layers else "no GPU"
    budget = sum(memory.budget_bytes for memory in made.memory)
    return (
        f"context {made.context} ({made.cache_type}), {where}, {made.threads} threads\n"
        f"about {figure(made.predicted.decode_tps)} tokens/s; "
        f"takes {mebibytes(made.total_bytes)} of {mebibytes(budget)} that are free"
    )


def _count(n: int) -> str:
    """Return a number of weights as people say it: '1.2 B'."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _object(one: ShownModel) -> dict[str, Any]:
    model, header = one.model, one.header
    return {
        "name": model.name,
        "full_name": model.full_name,
        "model": model.entry.name if model.entry else None,
        "title": header.name,
        "description": model.entry.description if model.entry else None,
        "architecture": header.architecture,
        "parameters": header.n_params,
        "layers": header.n_layers,
        "heads": max(header.heads, default=0),
        "kv_heads": max(header.kv_heads, default=0),
        "head_length": header.key_length,
        "experts": header.number("expert_count", 0),
        "experts_used": header.number("expert_used_count", 0),
        "vocabulary": header.vocab_size,
        "context": header.context_length,
        "window": header.sliding_window,
        "format": header.format,
        "quant": model.quant or header.quant,
        "bits_per_weight": round(_bits(header), 2),
        "licence": _licence(one),
        "template": header.chat_template is not None,
        "thinking": model.entry.thinking if model.entry else None,
        "size": model.size,
        "files": [str(file.path) for file in model.found.files],
        "place": model.place.value,
        "repository": model.found.repo,
        "last_used": one.use.when if one.use else None,
        "plan": as_json(one.plan) if one.plan else None,
        "why_not": one.why_not or None,
    }
