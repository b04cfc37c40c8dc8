"""`edgechat plan`: which files would be chosen, and why, as text or as JSON.

With --json, one object is printed for a single MODEL. For several or none, it is a list, best first:

    model, path, backend ("llama.cpp" or "mlx"), quant, file_bytes, context, cache_type, threads, gpu_layers,
    n_layers, split, experts_in_ram, n_batch, n_ubatch, n_seq_max, n_outputs_max, n_rs_seq, flash_attention
    devices       a list: name ("RAM", llama.cpp's name, or "MLX"), budget_bytes, weights_bytes, cache_bytes,
                  compute_bytes, program_bytes, checkpoint_bytes, projector_bytes,
                  adapter_bytes, total_bytes
    exact         whether llama.cpp's allocator computed the sizes; otherwise, and for projectors, they are
                  estimated
    draft         the drafter, if it is a separate file: model, kind ("model", "mtp" or "eagle3"), path,
                  quant, file_bytes, context, total_bytes; or null
    mtp           the drafter, if it is the model's own layers: total_bytes (included in `devices`) and
                  expected_speedup (1 means no speedup); or null
    drafters      the names of all drafters, as in `edgechat run --json`
    projector     the file that lets the model see or hear: path, name, vision, audio, device (the
                  accelerator that holds it, or null), image_tokens (the most context tokens that an image can
                  take), image_batch (how many of them one call must compute together, or 0), file_bytes,
                  weights_bytes, compute_bytes, host_bytes, total_bytes (the most in total); or null
    adapters      the LoRA adapters that are loaded with it, a list: name, path, scale, rank, bytes
    remote        the server that runs the model: name, kind, url and more; or null
    program       the engine that edgechat starts for it: its command and the memory it is expected to take;
                  or null
    no_vision     why the model will not see or hear although it could, or null
    ngrams        whether n-grams from the conversation are used for drafting
    no_draft      why there is no drafter, or no draft model; or null
    predicted     decode_tps, prompt_tps, ttft_ms (the last two for 1,000 tokens), basis; by_depth: a list of
                  depth (tokens already in the context), decode_tps, prompt_tps (for the next 500 tokens)
    kl_divergence value, source, measured (whether this file was measured on this machine); or null
    notes, reasons
    alternatives  a list: model, backend, quant, context, decode_tps (both 0 if it does not fit), why_not
    verdict       "fits"; "slow" (slower than reading speed, or than --min-tps); "too lossy" (noticeably so,
                  or below --quality); "short" (trained on a shorter context than --ctx); or "too large", and
                  then the object has only model, backend, quant, file_bytes, verdict and why_not
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from edgechat import settings
from edgechat.base.errors import OptionWithoutEffect
from edgechat.base.text import figure, flat, mebibytes, one_line, seconds
from edgechat.cli import completion
from edgechat.cli.declaring import Number, argument, command, offline_option, option
from edgechat.cli.options import MOST, LoadOptions, json_option, load_options
from edgechat.cli.terminal_io import StatusLine, note, print_json, sheet, styled, table
from edgechat.cli.values import (
    amount,
    quality_class,
    rate,
    runs_elsewhere,
)
from edgechat.settings import Settings

if TYPE_CHECKING:
    from edgechat.models.remote.model import HostedModel
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.plan import LoadPlan
    from edgechat.planner.ranking.ranking import RankedFile, SurveyFindings
    from edgechat.planner.request import PlanRequest


@command("plan", epilog="The exit code is 1 if no model fits.")
@argument(
    "models",
    nargs=-1,
    required=False,
    metavar="MODEL",
    help="Files, folders, names, or owner/repo on the hub. Default: the whole catalogue.",
    complete=completion.all_models,
)
@option("--ctx", type=Number(int, min=1, max=MOST), help="The context length that is needed, in tokens.")
@option("--min-tps", type=Number(float, min=0), help="The lowest speed to accept, in tokens per second.")
@option("--clients", type=Number(int, min=1, max=MOST), help="How many clients ask at the same time.")
@option(
    "--quality",
    help="The lowest quality to accept: poor, reduced, good, high, near-lossless or reference.",
    complete=completion.qualities,
)
@option("--ram", help="Plan for a machine with this much memory: 8GiB.")
@option("--vram", help="... and a GPU with this much memory: 6GiB; 0: no GPU.")
@option("--bandwidth", help="... and this memory bandwidth: 50GB/s.")
@load_options(anyway=False)
@offline_option
@json_option
def plan(
    models: tuple[str, ...],
    ctx: int | None,
    min_tps: float | None,
    clients: int | None,
    quality: str | None,
    ram: str | None,
    vram: str | None,
    bandwidth: str | None,
    load: LoadOptions,
    json: bool,
) -> None:
    """Show which models fit and how fast they would be, without downloading or loading anything."""
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.prepare import all_models, one_model
    from edgechat.planner.request import with_settings

    if load.backend == "mlx" and vram is not None:
        raise click.BadParameter("a Mac's GPU shares the machine's memory; use --ram", param_hint="--vram")
    if load.lora is not None and not models:
        raise click.BadParameter("requires the model that the adapter is for", param_hint="--lora")
    described = MachineDescription(
        ram=amount("--ram", ram),
        vram=amount("--vram", vram),
        bandwidth=rate(bandwidth),
        runs_mlx=load.backend == "mlx",
    )
    request = load.request(context=ctx, min_tps=min_tps, clients=clients, quality=quality_class(quality))
    names = list(map(load.name, models))
    load.require_model(names)
    if any(map(runs_elsewhere, names)):
        show_elsewhere(names, request, described, json=json)
        return
    current = settings.load()
    offline, insists = current.offline, request.draft is not None
    request = with_settings(request, current)
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        if names:
            surveys = [
                one_model(name, request, described, offline=offline, insists=insists) for name in names
            ]
        else:
            surveys = [all_models(request, described)]
    if json and names:
        objects = [_object(survey.chosen or _smallest(survey.options)) for survey in surveys]
        print_json(objects[0] if len(objects) == 1 else objects)
    elif json:
        print_json([_object(option) for option in surveys[0].options])
    else:
        print("\n\n".join("\n".join(_lines(survey)) for survey in surveys))
    raise Exit(0 if all(survey.chosen for survey in surveys) else 1)


def _object(option: RankedFile) -> dict[str, Any]:
    from edgechat.planner.plan import as_json

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
    """Yield each row's mark and cells, with columns aligned and empty columns dropped."""
    marks, *columns = (column for column in zip(*rows, strict=True) if any(column[1:]))
    lines = table([tuple(map(flat, row)) for row in zip(*columns, strict=True)]).split("\n")
    yield from (f"{mark} {line}" for mark, line in zip(marks, lines, strict=True))


def _ladder(survey: SurveyFindings) -> Iterator[tuple[str, ...]]:
    from edgechat.planner.estimate.budget import RAM

    yield " ", "QUANT", "BACKEND", "SIZE", "CONTEXT", "ON GPU", "SEES", "TOKENS/S", "FIRST", "LOSS", "VERDICT"
    for file in survey.options:
        plan = file.plan
        by = "MLX" if file.variant.format == "mlx" else ""
        start = (_mark(file, survey), file.quant or "?", by, mebibytes(file.variant.size))
        if plan is None:
            yield *start, "", "", "", "", "", "", file.verdict.label
            continue
        cache = "" if plan.cache_type == "f16" else f" {plan.cache_type}"
        loss = figure(plan.kl_divergence.value, 2) if plan.kl_divergence else "?"
        share, *speeds = _figures(file, plan)
        where = (plan.projector.device or RAM) if plan.projector is not None else ""
        yield *start, f"{plan.context}{cache}", share, where, *speeds, loss, file.verdict.label


def _catalogue(survey: SurveyFindings) -> Iterator[str]:
    """Yield one table with a heading for each verdict. Models that are too large appear in `_choice`."""
    from edgechat.planner.ranking.ranking import Verdict

    headings = {
        Verdict.SLOW: "Slow:",
        Verdict.POOR: "Fits only in a quantization that is too lossy:",
        Verdict.SHORT: "Trained on a shorter context:",
    }
    rows = [(" ", "MODEL", "QUANT", "SIZE", "CTX", "GPU", "TOK/S", "FIRST", "SCORE")]
    fitting = [(file, file.plan) for file in survey.options if file.plan is not None]
    for file, plan in fitting:
        quality = file.variant.entry.quality if file.variant.entry else None
        size = mebibytes(file.variant.size).replace(" ", "").removesuffix("iB")
        cache = "" if plan.cache_type == "f16" else f" {plan.cache_type[:2]}"
        context = f"{plan.context // 1024}k" if plan.context >= 1024 else f"{plan.context}"
        start = (_mark(file, survey), file.variant.model, file.quant or "?", size, f"{context}{cache}")
        rows.append((*start, *_figures(file, plan), f"{quality}" if quality else "?"))
    before = Verdict.FITS
    head, *lines = _table(rows)
    yield head
    for line, (file, _) in zip(lines, fitting, strict=True):
        if file.verdict is not before:
            yield f"  {headings[file.verdict]}"
            before = file.verdict
        yield line


def _mark(option: RankedFile, survey: SurveyFindings) -> str:
    return "*" if survey.chosen is not None and option.variant is survey.chosen.variant else " "


def _figures(option: RankedFile, plan: LoadPlan) -> tuple[str, str, str]:
    """Return, as text, how much is on accelerators, the decoding speed and the time to first token."""
    from edgechat.planner.estimate.budget import RAM

    on_gpu = sum(memory.total_bytes for memory in plan.memory if memory.name != RAM)
    share = f"{100 * on_gpu / max(1, plan.total_bytes):.0f}%" if plan.gpu_layers else ""
    return share, figure(option.predicted.decode_tps), seconds(option.predicted.ttft_ms / 1000)


def _choice(survey: SurveyFindings) -> Iterator[tuple[str, str]]:
    from edgechat.planner.plan import LABELS

    too_large = [option.variant.model for option in survey.options if option.plan is None]
    if survey.name is None and too_large:
        yield "Too large", ", ".join(too_large)
    if survey.unread > 0:
        yield "Not examined", f"{survey.unread} more files in the repository, which seemed worse choices"
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
    for text in plan.notes:
        yield "Note", text
    yield "Why", "\n".join(plan.reasons)
    for other in plan.alternatives:
        context = f", context {other.context}" if other.context else ""
        by = f" for {LABELS[other.backend]}" if other.backend != plan.backend else ""
        yield "Or", f"{other.model} {other.quant or ''}{by}{context}: {other.why_not}"


def _smallest(options: Sequence[RankedFile]) -> RankedFile:
    return min(options, key=lambda option: option.variant.size)


# Models that edgechat does not load itself: ENGINE:MODEL, or NAME/MODEL on a remote.


def show_elsewhere(
    models: Sequence[str], request: PlanRequest, described: MachineDescription, *, json: bool
) -> None:
    """Print the memory and command for each model's engine, or what its server reports about the model.

    Raises EdgechatError.
    """
    from edgechat.planner.placement.programs import split_engine
    from edgechat.planner.plan import as_json

    unpredicted = [name for name in models if split_engine(name)[0] not in (None, "llama-server")]
    if described.bandwidth is not None and unpredicted:
        name = one_line(unpredicted[0], 100)
        raise OptionWithoutEffect(
            f"--bandwidth has no effect on {name}, for which no speed is predicted.", hint="Omit it."
        )
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        plans = [_elsewhere(name, request, described) for name in models]
    if json:
        objects = [as_json(plan) for plan in plans]
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        print("\n\n".join(sheet(_engine_lines(plan), bold=styled(sys.stdout)) for plan in plans))


def _elsewhere(name: str, request: PlanRequest, described: MachineDescription) -> LoadPlan:
    import asyncio

    from edgechat.engine.remote.choice import remote_plan
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.prepare import prepare

    config = settings.load()
    remote = remote_plan(name, config, request)
    if remote is None:
        return prepare(name, request, described=described, must_run=False)
    if described != MachineDescription():
        raise OptionWithoutEffect(
            f"{one_line(name, 100)} runs on another server, so this machine's hardware does not matter.",
            hint="Omit --ram, --vram and --bandwidth.",
        )
    return asyncio.run(_asked(remote, config))


async def _asked(plan: LoadPlan, config: Settings) -> LoadPlan:
    """Return the plan with the details that the model's server reports."""
    from edgechat.engine.remote.choice import remote_engine

    engine = remote_engine(plan, config, idle_seconds=0, on_note=note)
    try:
        await engine.start()
        return engine.plan
    finally:
        await engine.close()


def _engine_lines(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    yield "Model", f"{plan.model_name} {plan.quant or ''}".rstrip()
    if plan.remote is not None and plan.program is None:
        yield from _remote_lines(plan, plan.remote)
        return
    yield "Context", f"{plan.context} tokens"
    for part in plan.memory:
        yield part.name, f"{mebibytes(part.total_bytes)} of {mebibytes(part.budget_bytes)} usable"
    for text in plan.notes:
        yield "Note", text
    yield "Why", "\n".join(plan.reasons)
    if plan.program is None:  # a local model, given along with models that run elsewhere
        return
    given = [f"{name}={value}" for name, value in plan.program.environment.items()]
    yield "Command", shlex.join([*given, *plan.program.command])


def _remote_lines(plan: LoadPlan, remote: HostedModel) -> Iterator[tuple[str, str]]:
    from edgechat.models.remote.model import KINDS

    yield "Server", f"{KINDS[remote.kind]} at {remote.url}"
    told = "" if remote.context else " (assumed: the server does not say)"
    yield "Context", f"{plan.context} tokens{told}"
    if remote.n_params:
        yield "Size", f"{figure(remote.n_params / 1e9)} billion parameters"
    able = {
        "sees images": remote.sees,
        "hears audio": remote.hears,
        "calls tools": remote.has_tools,
        "can switch its thinking on and off": remote.can_switch_thinking,
    }
    yield "Can", ", ".join(what for what, is_so in able.items() if is_so) or "read and write text"
    if plan.predicted is None:
        yield "Speed", f"not measured yet\n  edgechat bench {plan.model_name}"
    else:
        speed = f"{figure(plan.predicted.decode_tps)} tokens/s"
        yield "Speed", f"{plan.predicted.ttft_ms:.0f} ms to the first token, {speed}, {plan.predicted.basis}"
    for text in plan.notes:
        yield "Note", text
    yield "Why", "Nothing is loaded on this machine: the server has the model."
