"""From what a person typed to a LoadPlan: find the model, read its header, look at the machine, choose."""

from __future__ import annotations

import msgspec

from edgechat import settings
from edgechat.device.profile import probe
from edgechat.models.gguf import read_model
from edgechat.models.header import GgufHeader
from edgechat.models.library import ResolvedModel, resolve
from edgechat.planner.choose import NO_WISHES, Wishes, plan
from edgechat.planner.dryrun import DryRun
from edgechat.planner.plan import LoadPlan

_SCRIPTED = ".scripted.json"


def prepare(model: str, wishes: Wishes = NO_WISHES) -> LoadPlan:
    """Return how to load `model`, a path or a name of the catalogue, on this machine now.

    A wish wins over settings.toml, and that over our own choice. Raises ModelNotFound, ModelFileError,
    DoesNotFit or SettingsError.
    """
    found = resolve(model)
    if found.path.name.endswith(_SCRIPTED):
        return _scripted(found, wishes)
    with DryRun() as dry:  # starts while the header is read
        header = read_model(found.path)
        dry.show(header)
        given = settings.load()
        wishes, note = _settled(wishes, given, header)
        made = plan(found, header, probe(), wishes, dry.ask)
    sampling = given.sampling.over(found.entry.sampling) if found.entry else given.sampling
    about = found.entry.description if found.entry else ""
    reasons = tuple(reason for reason in (about, *made.reasons, note) if reason)
    return msgspec.structs.replace(made, sampling=sampling, reasons=reasons)


def _settled(wishes: Wishes, given: settings.Settings, header: GgufHeader) -> tuple[Wishes, str]:
    """Return the wishes with what settings.toml says where there is none, and a note of what was not kept."""
    context, note = given.context, ""
    if wishes.context is None and context is not None and 0 < header.context_length < context:
        note = f"settings.toml asks for a context of {context}; the model was trained on no more than this."
        context = header.context_length
    settled = Wishes(
        context=context if wishes.context is None else wishes.context,
        cache_type=wishes.cache_type,
        threads=given.threads if wishes.threads is None else wishes.threads,
    )
    return settled, note


def _scripted(found: ResolvedModel, wishes: Wishes) -> LoadPlan:
    """Return the plan for the backend of the tests, which answers from a script."""
    return LoadPlan(
        model_path=str(found.path),
        model_name=found.name,
        backend="scripted",
        context=4096 if wishes.context is None else wishes.context,
        threads=1,
    )
