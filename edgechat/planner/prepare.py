"""From what a person typed to a LoadPlan: find the model, read its header, look at the machine, choose."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from edgechat import settings
from edgechat.device import amdgpu
from edgechat.device.gpu import merge, sightings_of
from edgechat.device.mac import mac_sightings
from edgechat.device.profile import DeviceProfile, probe
from edgechat.errors import DryRunFailed
from edgechat.models.gguf import read_model
from edgechat.models.library import ResolvedModel, resolve
from edgechat.planner.choose import plan
from edgechat.planner.dryrun import DryRun
from edgechat.planner.learned import Learned
from edgechat.planner.plan import LoadPlan
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
    with DryRun() as dry:  # starts while the header is read
        header = read_model(found.path)
        dry.show(header)
        given = settings.load()
        wishes = _settled(wishes, given)
        made = plan(found.name, header, look(dry), wishes, dry.ask, Learned.read(), path=str(found.path))
    sampling = given.sampling.over(found.entry.sampling) if found.entry else given.sampling
    about = found.entry.description if found.entry else ""
    reasons = tuple(reason for reason in (about, *made.reasons) if reason)
    return msgspec.structs.replace(made, sampling=sampling, reasons=reasons)


def look(dry: DryRun | None = None) -> DeviceProfile:
    """Return this machine as it is now; with its accelerators where a dry run can be asked for them."""
    profile = probe()
    if dry is None:
        return profile
    servers = settings.load().rpc
    try:
        devices = dry.inventory(servers).devices
    except DryRunFailed:  # then it cannot load anything on them either
        return profile
    seen = [*sightings_of(devices), *amdgpu.sightings(), *mac_sightings()]
    return replace(profile, accelerators=merge(seen, profile.memory), rpc=servers)


def _settled(wishes: Wishes, given: settings.Settings) -> Wishes:
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
