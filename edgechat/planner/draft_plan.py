"""The draft model of another model: which one is meant, whether it can draft, and the plan with it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound, NotADraft
from edgechat.models.formats.gguf import read_header
from edgechat.models.formats.mtp import HeadFile, can_draft, is_head_alone
from edgechat.models.formats.mtp import misfit as head_misfit
from edgechat.models.local.resolve import entry_of
from edgechat.planner import reasons
from edgechat.planner.drafting import (
    AUTO,
    MTP,
    NGRAM,
    NONE,
    drafting_with_head,
    is_much_smaller,
    misfit,
)
from edgechat.planner.machine import Machine
from edgechat.planner.plan import LoadPlan
from edgechat.planner.plan_model import DraftCandidate, plan_variant
from edgechat.planner.ranking.candidates import Variant, local_of, of_path, recommended
from edgechat.planner.request import PlanRequest

_NO_HEAD_HINT = "Draft otherwise: --draft auto, ngram, or the name of a small model of its family."
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
    """Return the plan with a draft model: the requested one, or the catalogue's.

    None is needed where the model's own layers draft (MTP). insists: what drafts was requested now, so it is
    an error if it cannot: ModelFileError, NotADraft or DoesNotFit. Otherwise the plan says why it does not.
    elsewhere: also consider models of the catalogue that are not on this machine.
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
        header, path = small.header(), str(small.path or "")
        timed = machine.timed_for([header])
        draft = DraftCandidate(small.model, header, timed.measuring(header), path, requested=wish != AUTO)
        return drafted(plan, variant, timed, request, draft)
    except (DoesNotFit, ModelFileError, ModelNotFound, NotADraft) as error:
        if insists and wish != AUTO:
            raise
        return without_draft(plan, error.message)


def _head_file(wish: str) -> HeadFile | None:
    """Return the layers in the file that was requested, if it is one of such layers alone."""
    path = Path(wish)
    if not (path.suffix.lower() == ".gguf" and path.is_file()):
        return None
    header = read_header(path)
    return HeadFile(path.stem, header, str(path.absolute())) if is_head_alone(header) else None


def _with_head_file(
    plan: LoadPlan, variant: Variant, machine: Machine, request: PlanRequest, head: HeadFile
) -> LoadPlan:
    """Return the plan with layers in a file of their own. Raises NotADraft or DoesNotFit."""
    header = variant.header()
    if can_draft(header):
        raise NotADraft(f"{plan.model_name} drafts with layers of its own file.", hint="Use --draft mtp.")
    if problem := head_misfit(head.header, header):
        raise _refusal(head.name, plan.model_name, problem)
    asked = msgspec.structs.replace(request, draft=MTP)
    both = plan_variant(variant, machine, asked, nearest=False, head=head)
    if both.head is None:
        raise DoesNotFit(both.no_draft, hint="Choose a shorter context, for example --ctx 4096.")
    return msgspec.structs.replace(both, alternatives=plan.alternatives)


def check_head(plan: LoadPlan, variant: Variant) -> None:
    """Raise NotADraft or DoesNotFit where the model's own layers (MTP) were requested and do not draft."""
    if plan.head is not None:
        return
    beside = variant.head()[0] is not None
    why = drafting_with_head(variant.header(), MTP, beside=beside).why_not
    if why:
        raise NotADraft(f"{plan.model_name} cannot draft with its own layers. {why}", hint=_NO_HEAD_HINT)
    raise DoesNotFit(plan.no_draft, hint="Choose a shorter context, for example --ctx 4096.")


def drafted(
    plan: LoadPlan, variant: Variant, machine: Machine, request: PlanRequest, draft: DraftCandidate
) -> LoadPlan:
    """Return the plan with this draft model. Raises NotADraft or DoesNotFit."""
    header = variant.header()
    problem = misfit(header, draft.header)
    if problem:
        raise _refusal(draft.name, plan.model_name, problem)
    if not (draft.requested or is_much_smaller(draft.header, header)):
        raise NotADraft(
            f"{draft.name} is not used as a draft model: it has more than half as many weights. To use it "
            f"anyway: --draft {draft.name}"
        )
    both = plan_variant(variant, machine, request, nearest=False, draft=draft)
    before = plan.reasons[: len(plan.reasons) - len(both.reasons)]  # why this file, of several
    return msgspec.structs.replace(both, alternatives=plan.alternatives, reasons=(*before, *both.reasons))


def without_draft(plan: LoadPlan, no_draft: str) -> LoadPlan:
    """Return the plan with the reason why it has no draft model."""
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
    except ModelNotFound as error:  # would be mistaken for one about the target
        raise NotADraft(
            f"{wish} cannot be used as a draft model. {error.message}", hint=error.hint
        ) from error
    if small.path is not None and variant.path is not None and small.path.samefile(variant.path):
        raise _refusal(small.model, variant.model, "they are the same model")
    return small


def _catalogue_draft(variant: Variant, elsewhere: bool) -> Variant | None:
    """Return the draft model that the catalogue names; None if the target is not in the catalogue.

    If the target is on this machine, its draft model must be too; otherwise both would be downloaded.
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
