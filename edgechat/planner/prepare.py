"""From what a person typed to a LoadPlan: find the model, read its header, look at the machine, choose."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgechat import settings
from edgechat.models.header import GgufHeader
from edgechat.models.library import ResolvedModel, resolve
from edgechat.planner.dryrun import DryRun
from edgechat.planner.learned import Learned
from edgechat.planner.machine import Machine, look
from edgechat.planner.plan import LoadPlan
from edgechat.planner.select import choose, planned, rate
from edgechat.planner.variants import Variant, variants
from edgechat.planner.wishes import NO_WISHES, Wishes

_SCRIPTED = ".scripted.json"


def prepare(model: str, wishes: Wishes = NO_WISHES) -> LoadPlan:
    """Return how to load `model`, a path or a name of the catalogue, on this machine now.

    A wish wins over settings.toml, and that over our own choice. Raises ModelNotFound, ModelFileError,
    DoesNotFit or SettingsError.
    """
    found = resolve(model)
    if found.path.name.endswith(_SCRIPTED):
        return _scripted(found, wishes)
    given = settings.load()
    with DryRun() as dry:  # starts while the header is read
        files = variants(model, offline=True, local=True)
        headers = [(one, one.header()) for one in files]
        machine = Machine(look(dry), history=Learned.read(), dry=dry)
        made = _best(headers, machine, settled(wishes, given))
    sampling = given.sampling.over(found.entry.sampling) if found.entry else given.sampling
    about = found.entry.description if found.entry else ""
    reasons = tuple(reason for reason in (about, *made.reasons) if reason)
    return msgspec.structs.replace(made, sampling=sampling, reasons=reasons)


def _best(headers: Sequence[tuple[Variant, GgufHeader]], machine: Machine, wishes: Wishes) -> LoadPlan:
    """Return the plan for the best of the files that are here. Raises DoesNotFit."""
    if len(headers) > 1:
        chosen = choose((rate(one, machine, wishes, header) for one, header in headers), wishes)
        if chosen is not None and chosen.plan is not None:
            return chosen.plan
    smallest, header = headers[0]
    return planned(smallest, header, machine, wishes)


def settled(wishes: Wishes, given: settings.Settings) -> Wishes:
    """Return the wishes with what settings.toml says where there is none."""
    return msgspec.structs.replace(
        wishes,
        context=given.context if wishes.context is None else wishes.context,
        threads=given.threads if wishes.threads is None else wishes.threads,
    )


def _scripted(found: ResolvedModel, wishes: Wishes) -> LoadPlan:
    """Return the plan for the backend of the tests, which answers from a script."""
    return LoadPlan(
        model_path=str(found.path),
        model_name=found.name,
        backend="scripted",
        context=4096 if wishes.context is None else wishes.context,
        threads=1,
    )
