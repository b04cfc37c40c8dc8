"""Fallback: shrinks a plan that no longer fits, step by step, and reports each step to the user.

Memory is checked again just before a load, as other programs may have taken some since the plan was made. A
load can also fail or be killed even though it seemed to fit; in that case, at least one step is taken. The
next load starts from the original plan again, so a temporary shortage of memory has no lasting effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from edgechat.base.errors import DoesNotFit, EdgechatError
from edgechat.base.text import mebibytes
from edgechat.device.profile import DeviceProfile
from edgechat.device.remote.workers import why_lost, worker_addresses
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.mlx.contents import read_model
from edgechat.planner.estimate.budget import RAM, Budget, Needs
from edgechat.planner.estimate.calibration import Calibration
from edgechat.planner.estimate.dry_run import DryRun
from edgechat.planner.estimate.footprint import footprint_of, may_quantize
from edgechat.planner.estimate.memory import CELLS
from edgechat.planner.machine import current_profile
from edgechat.planner.placement.drafting import AUTO, draft_costs
from edgechat.planner.placement.model_on_machine import (
    Measure,
    ModelOnMachine,
    for_embeddings,
    model_on_machine,
)
from edgechat.planner.placement.plan_model import completed
from edgechat.planner.plan import LoadPlan, params_of

_SMALL_BATCH = 128
_LEAST_CONTEXT = 2048
_LEAST_TEXT = 512
_MORE = 1.1
"""Factor by which free memory must have grown since the current plan was made for a new one to be tried."""


def plan_reload(
    requested: LoadPlan, last: LoadPlan, *, killed: bool = False
) -> tuple[LoadPlan, tuple[str, ...]]:
    """Return the original plan, reduced until it fits, and its differences from the last load.

    killed: the last load ran out of memory, so this one must need less. Raises DoesNotFit.
    """
    plan, changes = refit(requested)
    if killed and plan.total_bytes >= last.total_bytes:
        return refit(last, failed=True)
    if _loaded(plan) == _loaded(last):
        return plan, ()
    if plan.context > last.context:
        return plan, (f"More memory is free again: the context is now {plan.context} tokens.",)
    return plan, changes


def replan_for_more(requested: LoadPlan, replan: Callable[[], LoadPlan]) -> LoadPlan:
    """Return a new plan if a worker was lost, or if there is more memory now than when `requested` was made.

    The new plan must not be worse, and must use the same file: nobody wants a different model in the middle
    of a conversation.
    """
    if why_lost(requested.rpc):
        with contextlib.suppress(EdgechatError):  # if planning fails, the requested plan is reduced
            plan = replan()
            if plan.model_path == requested.model_path:
                return plan
        return requested
    planned_for = next((memory.budget_bytes for memory in requested.memory if memory.name == RAM), 0)
    if not requested.memory or (
        not requested.devices and Budget.of(current_profile()).ram <= _MORE * planned_for
    ):
        return requested
    try:
        plan = replan()
    except EdgechatError:  # reduce the requested plan instead
        return requested
    no_less = plan.context >= requested.context and plan.gpu_layers >= requested.gpu_layers
    no_less = no_less and (plan.projector is not None or requested.projector is None)
    no_less = no_less and (plan.head is not None or requested.head is None)
    return plan if no_less and plan.model_path == requested.model_path else requested


def is_short(plan: LoadPlan) -> bool:
    """Return whether a load that has ended would no longer fit, as other programs have taken its memory."""
    return not Budget.of(current_profile()).fits(_needs(plan))


def refit(plan: LoadPlan, *, failed: bool = False) -> tuple[LoadPlan, tuple[str, ...]]:
    """Return the plan reduced to fit the memory that is free now, and the changes.

    failed: loading the plan failed, so take at least one step. Raises DoesNotFit if no step is left.
    """
    lost = why_lost(plan.rpc)
    if plan.anyway and not (failed or lost):
        return plan, ()
    if plan.backend == "mlx":
        return reduce_to_fit(plan, read_model(Path(plan.model_path)), current_profile(), None, failed=failed)
    if not failed and not plan.devices and not is_short(plan):
        return plan, ()
    with DryRun() as dry:
        header = read_model(Path(plan.model_path))
        dry.show(header)
        profile = current_profile(dry, () if lost else worker_addresses(plan.rpc))
        if not lost:
            return reduce_to_fit(plan, header, profile, dry.ask, failed=failed)
        alone = msgspec.structs.replace(plan, devices=(), split=(), experts_in_ram=0, rpc=())
        model = _model(plan, header, profile, dry.ask)
        alone = completed(alone, model, model.exactly(alone, alone.projector))
        return reduce_to_fit(alone, header, profile, dry.ask, failed=False)


def reduce_to_fit(
    plan: LoadPlan, header: ModelHeader, profile: DeviceProfile, measure: Measure | None, *, failed: bool
) -> tuple[LoadPlan, tuple[str, ...]]:
    """Return the first reduced plan that fits on this machine; see `refit`."""
    model = _model(plan, header, profile, measure)
    changes: list[str] = []
    while failed or not model.budget.fits(_needs(plan)):
        step = step_down(plan, header)
        if step is None:
            raise _nothing_left(plan, model.budget)
        reduced, change = step
        plan = completed(reduced, model, model.exactly(reduced, reduced.projector))
        changes.append(change)
        failed = False
    return plan, tuple(changes)


def _model(
    plan: LoadPlan, header: ModelHeader, profile: DeviceProfile, measure: Measure | None
) -> ModelOnMachine:
    return model_on_machine(
        plan.model_name,
        header,
        profile,
        measure,
        Calibration.read(),
        threads=plan.threads,
        adapters=plan.adapters,
    )


def step_down(plan: LoadPlan, header: ModelHeader) -> tuple[LoadPlan, str] | None:
    """Return the plan reduced by one step, with a sentence about that step, or None if no step is left."""
    replace = msgspec.structs.replace
    if plan.embeddings and plan.context > _LEAST_TEXT:
        half = max(_LEAST_TEXT, plan.context // 2 // CELLS * CELLS)
        shorter = for_embeddings(replace(plan, context=half), header)
        return shorter, f"Texts are limited to {half} tokens, to save memory."
    if plan.embeddings:
        return _with_fewer_gpu_layers(plan)
    if plan.mtp or plan.head is not None:
        why = "Its own drafting layers (MTP) are not loaded, to save memory."
        return _without_head(replace(plan, draft=None, head=None, no_draft=why), header), why
    if plan.draft is not None:
        why = f"The draft model {plan.draft.model_name} is not used, to save memory."
        return replace(plan, draft=None, no_draft=why), why
    one = footprint_of(header.format).checkpoint(header, plan)
    if plan.checkpoint_bytes > one:
        fewer = replace(plan, checkpoint_bytes=one)
        return fewer, "To save memory, the model reads the whole chat again after most edits."
    if not plan.flash_attention:
        return replace(plan, flash_attention=True), "Flash attention is used, to save memory."
    # llama.cpp aborts if a picture that must be computed in one call exceeds the batch.
    least = max(_SMALL_BATCH, plan.projector.image_batch if plan.projector is not None else 0)
    if plan.n_ubatch > least:
        smaller = replace(plan, n_batch=least, n_ubatch=least)
        return smaller, f"Prompts are read {least} tokens at a time, to save memory."
    if plan.cache_type == "f16" and may_quantize(header):
        return replace(plan, cache_type="q8_0"), "The KV cache is kept in 8 bits (q8_0), to save memory."
    if plan.projector is not None:
        name = plan.projector.name
        what = name[:1].upper() + name[1:] if plan.backend == "mlx" else f"Its projector {name}"
        why = f"{what} is not loaded, to save memory: the model reads only text."
        return replace(plan, projector=None, no_vision=why), why
    if plan.context > _LEAST_CONTEXT:
        half = max(_LEAST_CONTEXT, plan.context // 2 // CELLS * CELLS)
        return replace(plan, context=half), f"The context is reduced to {half} tokens, to save memory."
    return _with_fewer_gpu_layers(plan)


def _without_head(plan: LoadPlan, header: ModelHeader) -> LoadPlan:
    """Return the plan as if the model's own drafting layers had never been considered."""
    others = draft_costs(header, AUTO)
    return msgspec.structs.replace(
        plan,
        mtp=False,
        n_rs_seq=others.n_rs_seq,
        n_outputs_max=plan.n_seq_max + others.drafted,
        ngrams=others.drafted > 0,
    )


def _with_fewer_gpu_layers(plan: LoadPlan) -> tuple[LoadPlan, str] | None:
    """Return the plan with a quarter of each card's layers moved to the CPU.

    Returns None for MLX, or if no cards are used.
    """
    if not plan.split or plan.backend == "mlx":
        return None
    counts = [count - max(1, count // 4) for count in plan.split]
    remaining = {name: count for name, count in zip(plan.devices, counts, strict=True) if count}
    fewer = msgspec.structs.replace(
        plan,
        devices=tuple(remaining),
        split=tuple(remaining.values()),
        experts_in_ram=plan.experts_in_ram if remaining else 0,
        rpc=plan.rpc if remaining else (),
    )
    n = plan.gpu_layers - fewer.gpu_layers
    return fewer, f"{n} more layer{'s run' if n > 1 else ' runs'} on the CPU, to save memory."


def _needs(plan: LoadPlan) -> Mapping[str, Needs]:
    return {memory.name: memory for memory in plan.memory}


def _loaded(plan: LoadPlan) -> tuple[object, ...]:
    """Return the parts of a plan that a user would notice if they changed."""
    return params_of(plan), plan.draft, plan.checkpoint_bytes, plan.projector


def _nothing_left(plan: LoadPlan, budget: Budget) -> DoesNotFit:
    needs = _needs(plan)
    why = f"needs at least {mebibytes(budget.charged(needs))}, but only {budget.in_words} now"
    if budget.fits(needs):
        why = f"could not allocate the memory it needs, although {budget.in_words}"
    return DoesNotFit(
        f"{plan.model_name} {why}, and the load cannot be reduced any further.",
        hint="Close other programs, choose a smaller model, or try anyway with --load-anyway.",
    )
