"""The model that drafts for another one: which one is meant, whether it can, and the plan with it."""

from __future__ import annotations

import msgspec

from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound, NotADraft
from edgechat.models.local.resolve import entry_of
from edgechat.planner import reasons
from edgechat.planner.drafting import AUTO, NGRAM, NONE, is_much_smaller, misfit
from edgechat.planner.machine import Machine
from edgechat.planner.plan import LoadPlan
from edgechat.planner.plan_model import DraftCandidate, plan_variant
from edgechat.planner.ranking.candidates import Variant, local_of, of_path, recommended
from edgechat.planner.request import PlanRequest

_HINT = "Choose a smaller model of the same family, or let edgechat choose: --draft auto"


def with_draft(
    made: LoadPlan,
    variant: Variant,
    machine: Machine,
    request: PlanRequest,
    *,
    insists: bool,
    elsewhere: bool = False,
) -> LoadPlan:
    """Return the plan of a file with the model that is to draft for it: as wished, or as the catalogue says.

    insists: someone asked for that model now, so where it cannot draft that is an error: ModelFileError,
    NotADraft or DoesNotFit. Else the plan says why no model drafts. elsewhere: plan with
    models of the catalogue that are not on this machine, too.
    """
    wish = request.draft or AUTO
    if wish in (NONE, NGRAM) or (wish == AUTO and not made.ngrams):
        return made
    try:
        small = _paired(variant, elsewhere) if wish == AUTO else _asked(wish, variant, elsewhere)
        if small is None or not made.ngrams:
            return made
        its = small.header()
        path = str(small.path or "")
        draft = DraftCandidate(small.model, its, machine.measuring(its), path, asked=wish != AUTO)
        return drafted(made, variant, machine, request, draft)
    except (DoesNotFit, ModelFileError, ModelNotFound, NotADraft) as error:
        if insists and wish != AUTO:
            raise
        return without(made, error.message)


def drafted(
    made: LoadPlan, variant: Variant, machine: Machine, request: PlanRequest, draft: DraftCandidate
) -> LoadPlan:
    """Return the plan of a file with this model to draft for it. Raises NotADraft or DoesNotFit."""
    header = variant.header()
    wrong = misfit(header, draft.header)
    if wrong:
        raise refused(draft.name, made.model_name, wrong)
    if not (draft.asked or is_much_smaller(draft.header, header)):
        raise NotADraft(
            f"{draft.name} is not used as a draft model: it has more than half as many weights. To use it "
            f"anyway: --draft {draft.name}"
        )
    both = plan_variant(variant, machine, request, nearest=False, draft=draft)
    before = made.reasons[: len(made.reasons) - len(both.reasons)]  # why this file, of several
    return msgspec.structs.replace(both, alternatives=made.alternatives, reasons=(*before, *both.reasons))


def without(made: LoadPlan, no_draft: str) -> LoadPlan:
    """Return a plan that says why no model drafts for it."""
    told = msgspec.structs.replace(made, no_draft=no_draft)
    before, after = reasons.drafts(made), reasons.drafts(told)
    changed = tuple(after if one == before else one for one in made.reasons)
    return msgspec.structs.replace(told, reasons=changed)


def refused(draft: str, target: str, wrong: str) -> NotADraft:
    """Return the error for a model that cannot draft for another one."""
    return NotADraft(f"{draft} cannot draft for {target}: {wrong}.", hint=_HINT)


def _asked(wish: str, variant: Variant, elsewhere: bool) -> Variant:
    """Return the model that someone asked for. Raises ModelFileError, or NotADraft where there is none."""
    entry = entry_of(wish)
    known = local_of(entry, variant.format) if entry is not None else None
    if known is None and entry is not None and elsewhere:
        known = recommended(entry, variant.format)
    try:
        small = known or of_path(wish)
    except ModelNotFound as error:  # which would be taken for the model's own
        raise NotADraft(
            f"{wish} cannot be used as a draft model. {error.message}", hint=error.hint
        ) from error
    if small.path is not None and variant.path is not None and small.path.samefile(variant.path):
        raise refused(small.model, variant.model, "they are the same model")
    return small


def _paired(variant: Variant, elsewhere: bool) -> Variant | None:
    """Return the draft of the catalogue; None where it knows nothing of the model.

    Where the model is here its draft has to be here too; where it is not, both would be brought together.
    """
    entry = variant.entry
    if entry is None:
        return None
    small = entry_of(entry.draft) if entry.draft else None
    if small is None:
        raise NotADraft(f"No draft model is known. {entry.no_draft or ''}".rstrip())
    known = local_of(small, variant.format)
    if known is None and elsewhere and variant.path is None:
        known = recommended(small, variant.format)
    if known is None and variant.format == "mlx" and not small.mlx:
        raise ModelNotFound(f"Its draft model, {small.name}, is not available for MLX.")
    if known is None:
        how = " --backend mlx" if variant.format == "mlx" else ""
        raise ModelNotFound(
            f"Its draft model is not on this machine. To download it: edgechat pull {small.name}{how}"
        )
    return known
