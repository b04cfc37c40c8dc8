"""Plans how to load one file: makes a LoadPlan from its header, this machine and the user's request.

The plan includes a draft model if there is one. The memory that a load needs comes from llama.cpp's own
allocator (`dry_run.py`). For MLX, or if the allocator fails, it comes from formulas. Weights are counted in
full, and only once, although they are mapped from the file: pages that are read all the time must stay in
memory, and pages that the kernel has already cached count as free memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound, NotADraft, SettingsError
from edgechat.base.text import mebibytes
from edgechat.device.profile import DeviceProfile
from edgechat.device.speed import best_threads
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.mtp import HeadFile, can_draft, is_head_alone
from edgechat.models.formats.mtp import misfit as head_misfit
from edgechat.models.local.resolve import entry_of
from edgechat.models.quality import loss_of_file
from edgechat.native.params import CacheType
from edgechat.planner.candidates import Variant, local_of, of_path, recommended
from edgechat.planner.companions import plan_adapters
from edgechat.planner.estimate.budget import RAM, SPARE
from edgechat.planner.estimate.footprint import footprint_of, may_quantize
from edgechat.planner.estimate.memory import CELLS
from edgechat.planner.estimate.speed import predict
from edgechat.planner.machine import Machine
from edgechat.planner.placement import reasons
from edgechat.planner.placement.drafting import (
    AUTO,
    MTP,
    NGRAM,
    NONE,
    HeadChoice,
    HeadedModel,
    choose_head,
    draft_costs,
    head_costs,
    is_much_smaller,
    misfit,
    reserve_head,
)
from edgechat.planner.placement.model_on_machine import (
    LONGEST_TEXT,
    LoadConfig,
    ModelOnMachine,
    model_on_machine,
)
from edgechat.planner.placement.reasons import LONGEST, USUAL
from edgechat.planner.plan import DeviceMemory, Divergence, DraftKind, DraftPlan, LoadPlan, params_of
from edgechat.planner.request import BACKENDS, DEFAULT_REQUEST, ENOUGH, PlanRequest

CONTEXTS = (LONGEST, USUAL, 8192, 4096, 2048)
"""Contexts to try, in tokens."""
_PATIENCE = 60.0
"""Longest acceptable time for filling a context that is longer than usual, in seconds."""
_SLOWER = 1.15
"""Largest acceptable slowdown compared with a sufficient context. Longer contexts push layers off cards."""


def plan_variant(
    variant: Variant,
    machine: Machine,
    request: PlanRequest = DEFAULT_REQUEST,
    *,
    draft: Variant | None = None,
    reserves: bool = False,
    head: HeadFile | None = None,
    nearest: bool = True,
) -> LoadPlan:
    """Return the plan for a file. Without a dry run, all sizes are estimated.

    draft: a draft model that shares the budget, used if drafting is possible. reserves: reserve memory for
    it, because the user requested it; otherwise it gets the remaining memory. head: drafting layers to use
    instead of those in a file beside the model. nearest: if nothing fits, mention the longest context that
    would. Raises DoesNotFit, or SettingsError for invalid requests.
    """
    header, own, no_head = variant.header(), variant.defaults(), ""
    if head is None and (request.draft or AUTO) in (AUTO, MTP) and not can_draft(header):
        head, no_head = variant.head()
    if request.adapters is None:
        adapters = (*own.adapters, *request.usual_adapters)
        request = msgspec.structs.replace(request, usual_adapters=adapters)
    planned_with = partial(
        _planned, variant, machine, draft=draft, reserves=reserves, head=head, nearest=nearest
    )
    try:
        context = own.context if request.context is None else request.context
        plan = planned_with(msgspec.structs.replace(request, context=context))
    except DoesNotFit:
        if own.context is None or request.context is not None:
            raise
        plan = planned_with(request)
    quant = variant.quant or plan.quant
    figure = loss_of_file(quant, variant.path)
    divergence = None
    if figure is not None:
        divergence = Divergence(value=figure.value, source=figure.source, measured=figure.measured)
    return msgspec.structs.replace(
        plan,
        quant=quant,
        file_bytes=header.file_size or variant.size,
        kl_divergence=divergence,
        defaults=own,
        notes=(*plan.notes, *own.unread, *([no_head] if no_head else [])),
        reasons=(*plan.reasons, *reasons.own_defaults(own, header)),
    )


def _planned(
    variant: Variant,
    machine: Machine,
    request: PlanRequest,
    *,
    draft: Variant | None,
    reserves: bool,
    head: HeadFile | None,
    nearest: bool,
) -> LoadPlan:
    """Return the plan based on the header; see `plan_variant`."""
    header, profile = variant.header(), machine.profile
    request, notes = checked(request, header)
    asked = "the model's full context length" if notes else "as requested"
    threads, why_threads = threads_for(header, profile, request)
    adapters, left_out = plan_adapters(request.adapters or (), request.usual_adapters, header)
    ends, odd_ends = header.listed_ends
    refused = profile.refused if header.format == "gguf" else ""
    notes = (*notes, *_without_effect(header, request), *left_out, *filter(None, (odd_ends, refused)))
    sees = request.vision and not header.makes_embeddings
    projector, no_vision = variant.projector() if sees else (None, "")
    attention = request.attention or "auto"
    model = model_on_machine(
        variant.model,
        header,
        profile,
        machine.measuring(header),
        machine.history,
        threads=threads,
        drafting=draft_costs(header, request.draft or AUTO),
        projector=projector,
        adapters=adapters,
        attention=attention,
    )
    helper = None
    if draft is not None and model.drafting.drafted:
        small = draft.header()
        measure = machine.measuring(small)
        helper = model_on_machine(
            draft.model, small, profile, measure, machine.history, threads=threads, attention=attention
        )
        model = replace(model, draft=helper.as_draft) if reserves else model
    load, why_context = _chosen_load(model, request, asked)
    if projector is not None and not model.fits(load):
        model = replace(model, projector=None)
        needed = load.projector.total_bytes if load.projector is not None else 0
        load, why_context = _chosen_load(model, request, asked)
        what = "vision tower" if header.format == "mlx" else "projector"
        no_vision = (
            f"Its {what} is not loaded: there is not enough memory left for the {mebibytes(needed)} that it "
            "needs."
        )
    if not (model.fits(load) or request.anyway):
        raise _does_not_fit(model, load, nearest)
    model, chosen = _with_head(model, head, request, load, asked)
    load, why_context = chosen.load, chosen.why_context or why_context
    no_draft = " ".join(filter(None, (chosen.why_not, model.drafting.why_not)))
    if helper is not None and load.draft is None:
        both = model.beside(load, helper)
        no_draft = "" if both else f"The draft model {helper.name} does not fit beside the model."
        load = both or load
    incomplete = LoadPlan(
        context=load.context,
        threads=threads,
        model_path=str(variant.path or ""),
        model_name=variant.model,
        backend=BACKENDS[header.format],
        quant=header.quant,
        n_layers=header.n_layers,
        end_tokens=ends,
        notes=(*notes, *reasons.clients(header, model.budget, load, request)),
        anyway=request.anyway,
        draft=_draft_plan(load, head if chosen.head is not None else draft, threads),
        head=chosen.head,
        ngrams=model.drafting.drafted > 0,
        no_draft=no_draft,
        projector=load.projector,
        no_vision=no_vision,
        adapters=adapters,
        checkpoint_bytes=model.checkpoint_bytes(load),
    )
    complete = completed(incomplete, model, load)
    sentences = (why_context, *_reasons(complete, model, load, request, why_threads))
    return msgspec.structs.replace(complete, reasons=tuple(filter(None, sentences)))


def _without_effect(header: ModelHeader, request: PlanRequest) -> Iterator[str]:
    """Yield notes about options that MLX ignores."""
    if header.format != "mlx":
        return
    if request.attention not in (None, "auto"):
        yield f"MLX has its own attention: attention = {request.attention} has no effect."
    if request.threads is not None:
        yield f"MLX manages its own threads: threads = {request.threads} has no effect."


def _draft_plan(load: LoadConfig, drafter: Variant | HeadFile | None, threads: int) -> DraftPlan | None:
    if drafter is None or load.draft is None:
        return None
    kind: DraftKind = "model"
    if isinstance(drafter, HeadFile):
        header, name, path, kind = drafter.header, drafter.name, drafter.path, drafter.kind
    else:
        header, name, path = drafter.header(), drafter.model, str(drafter.path or "")
    return DraftPlan(
        **(params_of(load.draft.params) | {"threads": threads}),
        kind=kind,
        model_path=path,
        model_name=name,
        quant=header.quant,
        file_bytes=header.file_size,
        total_bytes=load.draft.total,
        forecast=load.draft.forecast,
    )


def _reasons(
    plan: LoadPlan, model: ModelOnMachine, load: LoadConfig, request: PlanRequest, why_threads: Iterable[str]
) -> Iterator[str]:
    """Yield the reasons for a plan, some of which may be empty."""
    header, budget, other = model.header, model.budget, model.other_attention(load)
    yield from reasons.backend(header, budget, request)
    yield from reasons.split(header, budget, load)
    yield from reasons.workers(budget, load, model.rates, model.with_layers_on)
    yield reasons.links(model.shape, load, model.rates)
    yield reasons.memory(budget, plan, load.source)
    yield reasons.attention(model.shape, load, other, model.learned.use(), request)
    yield reasons.sequences(header, load)
    yield reasons.vision(plan, load.why_there)
    yield reasons.adapters(plan)
    yield reasons.drafts(plan)
    yield from why_threads
    yield reasons.speed(plan)


def checked(request: PlanRequest, header: ModelHeader) -> tuple[PlanRequest, tuple[str, ...]]:
    """Return the request limited to what the model can do, with a sentence about each limit.

    Raises SettingsError for invalid requests, or DoesNotFit for a cache type that the model cannot use.
    """
    for name in ("context", "threads"):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} = {value} is not valid.", hint="Use a value of 1 or more.")
    if request.cache_type not in (None, "f16") and not may_quantize(header):
        why = footprint_of(header.format).whole_cache(header)
        raise DoesNotFit(
            f"The KV cache cannot use {request.cache_type}: {why}.", hint="Use f16 for the KV cache."
        )
    trained = header.context_length
    if request.context is None or not trained or request.context <= trained:
        return request, ()
    note = (
        f"The context is {trained} tokens instead of {request.context}: the model was not trained on longer "
        "contexts."
    )
    return msgspec.structs.replace(request, context=trained), (note,)


def threads_for(
    header: ModelHeader, profile: DeviceProfile, request: PlanRequest
) -> tuple[int, tuple[str, ...]]:
    """Return the number of threads and the reason.

    No reason is given for MLX, which manages its own threads.
    """
    threads, why_threads = best_threads(profile.cpu, profile.speed)
    if header.format == "mlx":
        return threads, ()
    if request.threads is not None:
        threads, why_threads = request.threads, f"{request.threads} threads, as requested."
    return threads, (why_threads,)


def completed(plan: LoadPlan, model: ModelOnMachine, load: LoadConfig) -> LoadPlan:
    """Return the plan with all fields that depend on a load filled in, except the reasons."""
    budgets = {RAM: model.budget.ram} | {card.name: card.budget for card in model.budget.cards}
    memory = tuple(
        DeviceMemory(name=name, budget_bytes=budgets.get(name, 0), **msgspec.structs.asdict(needs))
        for name, needs in load.keeping(plan.checkpoint_bytes).needs.items()
    )
    return msgspec.structs.replace(
        plan,
        **(params_of(load.params) | {"threads": plan.threads}),
        memory=memory,
        buffers=load.buffers,
        forecast=load.forecast,
        predicted=predict(load.forecast, model.correction(load), load.context),
        where=model.where_of(load),
    )


def types(model: ModelOnMachine, request: PlanRequest) -> tuple[CacheType, ...]:
    """Return the possible cache types, best first."""
    if request.cache_type is not None:
        return (request.cache_type,)
    if model.header.makes_embeddings:
        return ("f16",)
    if request.attention == "plain" and model.header.format == "gguf":  # plain attention cannot read 8 bits
        return ("f16",)
    return ("f16", "q8_0") if may_quantize(model.header) else ("f16",)


def _chosen_load(model: ModelOnMachine, request: PlanRequest, asked: str) -> tuple[LoadConfig, str]:
    """Return the load with the requested context, or else the best load, and the reason."""
    if request.context:
        return _requested_context(model, request, request.context, asked)
    return _best_context(model, request)


def _with_head(
    model: ModelOnMachine, file: HeadFile | None, request: PlanRequest, load: LoadConfig, asked: str
) -> tuple[ModelOnMachine, HeadChoice]:
    """Return the model and its load, using the model's own drafting layers (MTP) if they help."""
    wish = request.draft or AUTO
    costs = head_costs(model.header, wish, beside=file is not None)
    if not costs.drafted:
        is_told = wish == MTP or model.shape.n_head
        return model, HeadChoice(load, why_not=costs.why_not if is_told else "")
    drafting = replace(model, drafting=costs)
    headed = HeadedModel(drafting, None if costs.mtp else file)
    if wish == MTP and costs.mtp:
        reserved, why_context = _chosen_load(drafting, request, asked)
        if chosen := reserve_head(model, headed, load, reserved):
            return drafting, replace(chosen, why_context=why_context)
    shorter = () if request.context else _shorter(model, request, load)
    chosen = choose_head(model, headed, load, shorter, requested=wish == MTP)
    return drafting if chosen.head else model, chosen


def _requested_context(
    model: ModelOnMachine, request: PlanRequest, context: int, asked: str
) -> tuple[LoadConfig, str]:
    allowed = types(model, request)
    loads = (model.load(context, cache_type) for cache_type in allowed)
    load = next(load for load in loads if model.fits(load) or load.params.cache_type == allowed[-1])
    cache_type = load.params.cache_type
    shrunk = request.cache_type is None and cache_type != "f16"
    how = f", with the KV cache in {cache_type} because it does not fit in f16" if shrunk else ""
    return load, f"Context {load.context}: {asked}{how}."


def _best_context(model: ModelOnMachine, request: PlanRequest) -> tuple[LoadConfig, str]:
    """Return the load with the longest context that fits comfortably, and the reason."""
    allowed = types(model, request)
    guess = replace(model, measure=None)  # precise enough to predict the speed
    usual = guess.load(min(ENOUGH, model.header.context_length or ENOUGH), allowed[0])
    limit = _SLOWER * model.seconds(usual) if model.fits(usual, SPARE) else math.inf
    longest_slow = 0

    def is_comfortable(load: LoadConfig) -> bool:
        nonlocal longest_slow
        if load.context > ENOUGH and model.seconds(load) > limit:
            longest_slow = max(longest_slow, load.context)
            return False
        return model.fits(load, SPARE)

    patience = _PATIENCE / model.correction(usual).prefill
    forecast = usual.forecast
    contexts = [
        context for context in CONTEXTS if context <= USUAL or forecast.prefilling(context) <= patience
    ]
    load = _first_good(model, _candidates(model, allowed, contexts), is_comfortable)
    if not model.fits(load, SPARE):
        return load, f"Context {load.context}: barely fits; closing other programs would help."
    return load, reasons.context(model.header, model.budget, load, longest_slow > load.context)


def _candidates(
    model: ModelOnMachine, cache_types: tuple[CacheType, ...], contexts: list[int]
) -> list[tuple[int, CacheType]]:
    """Return the possible contexts and cache types, best first.

    An 8-bit cache ranks above half the context.
    """
    trained = model.header.context_length
    longest = min(trained or math.inf, LONGEST_TEXT if model.header.makes_embeddings else math.inf)
    possible = [context for context in contexts if context <= longest] or [trained]
    return [(context, cache_type) for context in possible for cache_type in cache_types]


def _shorter(
    model: ModelOnMachine, request: PlanRequest, load: LoadConfig
) -> Iterator[tuple[int, CacheType]]:
    """Yield the candidates that have a shorter context or a smaller cache than a load; see `_candidates`."""
    may_shrink = load.params.cache_type == "f16"
    for context, cache_type in _candidates(model, types(model, request), list(CONTEXTS)):
        if context < load.context or (context == load.context and may_shrink and cache_type != "f16"):
            yield context, cache_type


def _first_good(
    model: ModelOnMachine, candidates: list[tuple[int, CacheType]], is_good: Callable[[LoadConfig], bool]
) -> LoadConfig:
    """Return the first good load, or the last if none is. Candidates must be in order of decreasing size."""
    first, last = 0, len(candidates) - 1
    load = model.load(*candidates[first])
    if first == last or is_good(load):
        return load
    best = model.load(*candidates[last])
    if not is_good(best):
        return best
    while last - first > 1:
        middle = (first + last) // 2
        load = model.load(*candidates[middle])
        if is_good(load):
            last, best = middle, load
        else:
            first = middle
    return best


def _does_not_fit(model: ModelOnMachine, load: LoadConfig, nearest: bool) -> DoesNotFit:
    """Return the error for a load that does not fit. nearest: mention the longest context that would."""
    longest = min(model.longest(load.params.cache_type), load.context - CELLS) if nearest else 0
    hint = "Close other programs, or choose a smaller model."
    if longest >= CELLS:
        hint = f"A context of {longest} tokens fits. {hint}"
    needs = mebibytes(load.total)
    both = f" with {model.draft.name} as its draft model" if model.draft else ""
    cards = "".join(f", and {mebibytes(card.budget)} on {card.name}" for card in model.budget.cards)
    hint += " To try anyway: --load-anyway"
    return DoesNotFit(
        f"{model.name}{both} with a context of {load.context} tokens needs about {needs}, "
        f"but only {model.budget.in_words}{cards}.",
        hint=hint,
    )


_NO_HEAD_HINT = "To draft in another way: --draft auto, ngram, or the name of a small model of its family."
_HINT = "Choose a smaller model of the same family, or let edgechat choose: --draft auto"


def with_draft(
    plan: LoadPlan,
    variant: Variant,
    machine: Machine,
    request: PlanRequest,
    *,
    insists: bool,
    elsewhere: bool = False,
) -> LoadPlan:
    """Return the plan with a draft model: the requested one, or the one from the catalogue.

    No draft model is needed if the model's own layers draft (MTP). insists: the user has just requested the
    drafter, so raise ModelFileError, NotADraft or DoesNotFit if it cannot draft. Otherwise, the plan says why
    there is no drafter. elsewhere: also consider catalogue models that are not on this machine.
    """
    wish = request.draft or AUTO
    if (head := _head_file(wish)) is not None:
        try:
            return _with_head_file(plan, variant, machine, request, head)
        except (DoesNotFit, NotADraft) as error:
            if insists:
                raise
            return without_draft(plan, error.message)
    if wish == MTP and insists:
        check_head(plan, variant)
    if wish in (NONE, NGRAM, MTP) or (wish == AUTO and (plan.head is not None or not plan.ngrams)):
        return plan
    try:
        small = _catalogue_draft(variant, elsewhere) if wish == AUTO else _requested(wish, variant, elsewhere)
        if small is None or not plan.ngrams:
            return plan
        timed = machine.timed_for([small.header()])
        return drafted(plan, variant, timed, request, small, requested=wish != AUTO)
    except (DoesNotFit, ModelFileError, ModelNotFound, NotADraft) as error:
        if insists and wish != AUTO:
            raise
        return without_draft(plan, error.message)


def _head_file(wish: str) -> HeadFile | None:
    """Return the requested file if it contains only drafting layers, or else None."""
    path = Path(wish)
    if not (path.suffix.lower() == ".gguf" and path.is_file()):
        return None
    header = read_header(path)
    return HeadFile(path.stem, header, str(path.absolute())) if is_head_alone(header) else None


def _with_head_file(
    plan: LoadPlan, variant: Variant, machine: Machine, request: PlanRequest, head: HeadFile
) -> LoadPlan:
    """Return the plan with the drafting layers in a separate file. Raises NotADraft or DoesNotFit."""
    header = variant.header()
    if can_draft(header):
        raise NotADraft(
            f"{plan.model_name} already drafts with layers in its own file.", hint="Use --draft mtp."
        )
    if problem := head_misfit(head.header, header):
        raise _refusal(head.name, plan.model_name, problem)
    asked = msgspec.structs.replace(request, draft=MTP)
    both = plan_variant(variant, machine, asked, nearest=False, head=head)
    if both.head is None:
        raise DoesNotFit(both.no_draft, hint="Choose a shorter context, for example --ctx 4096.")
    return msgspec.structs.replace(both, alternatives=plan.alternatives)


def check_head(plan: LoadPlan, variant: Variant) -> None:
    """Raise NotADraft or DoesNotFit if the model's own layers (MTP) were requested but cannot draft."""
    if plan.head is not None:
        return
    beside = variant.head()[0] is not None
    why = head_costs(variant.header(), MTP, beside=beside).why_not
    if why:
        raise NotADraft(f"{plan.model_name} cannot draft with its own layers. {why}", hint=_NO_HEAD_HINT)
    raise DoesNotFit(plan.no_draft, hint="Choose a shorter context, for example --ctx 4096.")


def drafted(
    plan: LoadPlan,
    variant: Variant,
    machine: Machine,
    request: PlanRequest,
    draft: Variant,
    *,
    requested: bool,
) -> LoadPlan:
    """Return the plan with this draft model. Raises NotADraft or DoesNotFit."""
    header, small = variant.header(), draft.header()
    if problem := misfit(header, small):
        raise _refusal(draft.model, plan.model_name, problem)
    if not (requested or is_much_smaller(small, header)):
        raise NotADraft(
            f"{draft.model} is not used as a draft model: its weights are more than half the size of the "
            f"model's. To use it anyway: --draft {draft.model}"
        )
    both = plan_variant(variant, machine, request, nearest=False, draft=draft, reserves=requested)
    before = plan.reasons[: len(plan.reasons) - len(both.reasons)]  # why this file was chosen among several
    return msgspec.structs.replace(both, alternatives=plan.alternatives, reasons=(*before, *both.reasons))


def without_draft(plan: LoadPlan, no_draft: str) -> LoadPlan:
    """Return the plan with an explanation of why it has no draft model."""
    explained = msgspec.structs.replace(plan, no_draft=no_draft)
    before, after = reasons.drafts(plan), reasons.drafts(explained)
    changed = tuple(after if reason == before else reason for reason in plan.reasons)
    return msgspec.structs.replace(explained, reasons=changed)


def _refusal(draft: str, target: str, problem: str) -> NotADraft:
    return NotADraft(f"{draft} cannot draft for {target}: {problem}.", hint=_HINT)


def _requested(wish: str, variant: Variant, elsewhere: bool) -> Variant:
    """Return the requested draft model. Raises ModelFileError, or NotADraft if there is none."""
    entry = entry_of(wish)
    candidate = local_of(entry, variant.format) if entry is not None else None
    if candidate is None and entry is not None and elsewhere:
        candidate = recommended(entry, variant.format)
    try:
        small = candidate or of_path(wish)
    except ModelNotFound as error:  # the user could mistake this for an error about the target
        raise NotADraft(
            f"{wish} cannot be used as a draft model. {error.message}", hint=error.hint
        ) from error
    if small.path is not None and variant.path is not None and small.path.samefile(variant.path):
        raise _refusal(small.model, variant.model, "they are the same model")
    return small


def _catalogue_draft(variant: Variant, elsewhere: bool) -> Variant | None:
    """Return the catalogue's draft model, or None if the target is not in the catalogue.

    If the target is on this machine, its draft model must be there too; otherwise both would be downloaded.
    """
    entry = variant.entry
    if entry is None:
        return None
    small = entry_of(entry.draft) if entry.draft else None
    if small is None:
        raise NotADraft(f"No draft model is known. {entry.no_draft or ''}".rstrip())
    candidate = local_of(small, variant.format)
    if candidate is None and elsewhere and variant.path is None:
        candidate = recommended(small, variant.format)
    if candidate is not None:
        return candidate
    if variant.format == "mlx" and not small.mlx:
        raise ModelNotFound(f"Its draft model, {small.name}, is not available for MLX.")
    option = " --backend mlx" if variant.format == "mlx" else ""
    raise ModelNotFound(
        f"Its draft model is not on this machine. To download it: edgechat pull {small.name}{option}"
    )
