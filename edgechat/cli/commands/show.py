"""`edgechat show`: a model's header, where it is stored, and how it would be loaded here.

With --json, one object is printed, or a list if the name matches several files:

    name, full_name, model, title, description
    architecture, parameters, layers, heads, kv_heads, head_length, experts, experts_used, vocabulary
    context, window (in tokens; 0 means none), format ("gguf" or "mlx"), quant, bits_per_weight
    end_tokens (ids that end a reply), licence, template, thinking, size, files, place, repository, last_used
    defaults        what Ollama stores with the model: sampling, context, stop, system, chat_format, adapters
    vision, audio, projector, no_vision, mtp    as in `edgechat list --json`
    plan    as in `edgechat plan --json`; null if the model does not fit, which why_not explains

For a LoRA adapter, prints the same object as `edgechat list --json`. For a model that another program or
server runs, prints the same object as `edgechat plan --json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from edgechat import settings
from edgechat.base.errors import DoesNotFit
from edgechat.base.text import ago, figure, flat, mebibytes, one_line
from edgechat.cli.commands.models import adapter_object, adapter_rows, model_name
from edgechat.cli.declaring import command
from edgechat.cli.options import json_option
from edgechat.cli.terminal_io import StatusLine, print_json, sheet, styled
from edgechat.cli.values import runs_elsewhere
from edgechat.models.adapters.local import known_adapter
from edgechat.models.formats.header import Modality, ModelHeader, senses
from edgechat.models.local.inventory import LocalModel
from edgechat.models.local.ollama_store import NO_DEFAULTS, ModelDefaults, in_words, system_in_words
from edgechat.models.local.resolve import find_models
from edgechat.models.local.upkeep import ModelUse, use_of

if TYPE_CHECKING:
    from edgechat.planner.machine import Machine
    from edgechat.planner.plan import LoadPlan

_THINKING = {
    "none": "does not think",
    "always": "always thinks first",
    "default-on": "thinks first by default; --no-think switches it off",
    "default-off": "answers directly by default; --think lets it think first",
}


@command("show", offline=True)
@model_name
@json_option
def show(model: str, json: bool) -> None:
    """Show what a model is, where it is stored, and how it would be loaded."""
    from edgechat.cli.commands.plan import show_elsewhere
    from edgechat.planner.estimate.calibration import Calibration
    from edgechat.planner.estimate.dry_run import DryRun
    from edgechat.planner.machine import Machine, MachineDescription, current_profile
    from edgechat.planner.request import DEFAULT_REQUEST

    if (adapter := known_adapter(model)) is not None:
        details = adapter.details()
        if json:
            print_json(adapter_object(adapter, details))
        else:
            print(sheet(adapter_rows(adapter, details), bold=styled(sys.stdout), width=14))
        return
    if runs_elsewhere(model):
        show_elsewhere([model], DEFAULT_REQUEST, MachineDescription(), json=json)
        return
    with StatusLine(sys.stderr) as status, DryRun() as dry:
        status.show("reading the header")
        machine = Machine(current_profile(dry, settings.load().workers), history=Calibration.read(), dry=dry)
        models = [_shown(found, machine) for found in find_models(model)]
    if json:
        objects = [_object(shown) for shown in models]
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        print("\n\n".join(sheet(_rows(shown), bold=styled(sys.stdout), width=14) for shown in models))


@dataclass(frozen=True, slots=True)
class ShownModel:
    """A model, along with everything that the command shows about it."""

    model: LocalModel
    header: ModelHeader
    use: ModelUse | None
    plan: LoadPlan | None
    why_not: str = ""
    modalities: tuple[Modality, ...] = ()
    defaults: ModelDefaults = NO_DEFAULTS
    """Defaults that Ollama has stored for the model."""
    no_vision: str = ""
    """Why the model's projector cannot be used."""


def _shown(model: LocalModel, machine: Machine) -> ShownModel:
    from edgechat.planner.candidates import of_local
    from edgechat.planner.companions import header_beside
    from edgechat.planner.placement.plan_model import plan_variant, with_draft
    from edgechat.planner.request import DEFAULT_REQUEST, with_settings

    variant, request = of_local(model), with_settings(DEFAULT_REQUEST, settings.load())
    header, use, file = variant.header(), use_of(model.path), model.found.projector
    projector, no_vision = header_beside(header, file.path if file is not None else None)
    plan, why_not = None, ""
    try:
        plan = plan_variant(variant, machine, request)
        plan = with_draft(plan, variant, machine, request, insists=False)
    except DoesNotFit as error:
        why_not = error.message
    modalities = projector.modalities if projector is not None else ()
    return ShownModel(model, header, use, plan, why_not, modalities, variant.defaults(), no_vision)


def _rows(shown: ShownModel) -> Iterator[tuple[str, str]]:
    model, header, files = shown.model, shown.header, shown.model.found
    yield "Model", one_line(header.name or model.path.name)
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
    window = header.sliding_window
    in_some_layers = f", with a sliding window of {window} in some layers" if window else ""
    yield "Context", f"{header.context_length} tokens{in_some_layers}"
    quant = model.quant or header.quant or "unknown"
    tool = " for MLX" if header.format == "mlx" else ""
    yield "Quantization", f"{quant}{tool}, {_bits(header):.1f} bits per weight"
    if len(header.ends) > 1:
        yield "Ends", f"tokens {', '.join(map(str, header.ends))} end a reply"
    yield "Licence", _licence(shown) or "not stated"
    own = shown.defaults
    yield "Template", _template(header, own)
    if own != NO_DEFAULTS:
        yield "Parameters", flat(in_words(own)) or "none of its own"
    if own.system:
        yield "System", system_in_words(own)
    if own.adapters:
        yield "Adapters", "\n".join(f"  {flat(path)}" for path in own.adapters)
    if own.unread:
        yield "Unread", "\n".join(map(flat, own.unread))
    if model.entry is not None:
        yield "Thinking", _THINKING[model.entry.thinking]
    if header.format == "mlx" and (shown.modalities or shown.no_vision):
        weights = sum(tensor.n_bytes for tensor in header.vision_tensors)
        yield (
            "Vision",
            f"{mebibytes(weights)} of the weights are for images"
            if shown.modalities
            else flat(shown.no_vision),
        )
    if projector := _projector(shown):
        yield "Projector", projector
    if drafting := _own_layers(shown):
        yield "Drafting", drafting
    source = files.repo or ", ".join(files.tags)
    yield "Where", flat(f"{files.place.value}{f', {source}' if source else ''}")
    paths = [f"  {flat(str(file.path))}" for file in files.files]
    yield "Files", "\n".join([mebibytes(model.size), *paths])
    if shown.use is not None:
        yield "Last used", "loaded now" if shown.use.is_loaded else ago(time.time() - shown.use.when)
    yield "Plan", _plan(shown)


def _template(header: ModelHeader, own: ModelDefaults) -> str:
    if header.chat_template:
        return "its own"
    return (
        f"none; the {own.chat_format} format, according to Ollama" if own.template else "none; ChatML is used"
    )


def _projector(shown: ShownModel) -> str:
    """Describe the projector and what it is for; return '' for a text-only model."""
    file, entry = shown.model.found.projector, shown.model.entry
    if file is None:
        missing = shown.model.missing_modalities
        if entry is None or not missing:
            return ""
        return f"not here; with it the model {senses(missing)}\n  edgechat pull {entry.name}"
    what = f"with it the model {senses(shown.modalities)}" if shown.modalities else shown.no_vision
    return f"{mebibytes(file.size)}: {flat(what)}\n  {flat(str(file.path))}"


def _own_layers(shown: ShownModel) -> str:
    """Describe the model's own layers for drafting; return '' if it has none."""
    from edgechat.models.formats.mtp import stated_layers, why_no_drafts

    n, file = len(stated_layers(shown.header)), shown.model.found.head
    why_not = why_no_drafts(shown.header)
    if why_not and file is not None:
        return f"with layers of its own (MTP) in another file\n  {flat(str(file.path))}"
    return why_not or f"with {n} layer{'s' * (n > 1)} of its own (MTP)" if n else ""


def _licence(shown: ShownModel) -> str | None:
    if shown.header.licence:
        return one_line(shown.header.licence)
    if shown.defaults.licence:
        return shown.defaults.licence
    return shown.model.entry.licence if shown.model.entry is not None else None


def _attention(header: ModelHeader) -> str:
    heads, kv_heads = max(header.heads, default=0), max(header.kv_heads, default=0)
    without = sum(1 for n in header.kv_heads if not n)
    text = f"{heads} heads of {header.key_length} channels, {kv_heads} for keys and values"
    return f"{text}; {without} layers have none" if without else text


def _bits(header: ModelHeader) -> float:
    return 8 * header.weights_bytes / max(1, header.n_params)


def _plan(shown: ShownModel) -> str:
    """Return two lines that describe the plan, or the reason why there is no plan."""
    plan = shown.plan
    if plan is None or plan.predicted is None:
        return shown.why_not
    where = f"{plan.gpu_layers} of {plan.n_layers + 1} layers on GPUs" if plan.gpu_layers else "no GPU"
    budget = sum(memory.budget_bytes for memory in plan.memory)
    return (
        f"context {plan.context} ({plan.cache_type}), {where}, {plan.threads} threads\n"
        f"about {figure(plan.predicted.decode_tps)} tokens/s; "
        f"takes {mebibytes(plan.total_bytes)} of {mebibytes(budget)} that are free"
    )


def _count(n: int) -> str:
    """Format a number of weights for people to read: '1.2 B'."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)


def _object(shown: ShownModel) -> dict[str, Any]:
    from edgechat.models.formats.mtp import can_draft
    from edgechat.planner.plan import as_json

    model, header = shown.model, shown.header
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
        "end_tokens": list(header.ends),
        "licence": _licence(shown),
        "template": header.chat_template is not None,
        "defaults": to_builtins(shown.defaults),
        "thinking": model.entry.thinking if model.entry else None,
        "size": model.size,
        "files": [str(file.path) for file in model.found.files],
        "vision": "vision" in shown.modalities,
        "audio": "audio" in shown.modalities,
        "projector": str(model.found.projector.path) if model.found.projector else None,
        "no_vision": shown.no_vision or None,
        "mtp": can_draft(header) or model.found.head is not None,
        "place": model.place.value,
        "repository": model.found.repo,
        "last_used": shown.use.when if shown.use else None,
        "plan": as_json(shown.plan) if shown.plan else None,
        "why_not": shown.why_not or None,
    }
