"""The pool over real engines: from what the command line said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from edgechat import settings
from edgechat.engine.protocol import Engine, EngineState
from edgechat.engine.remote.choice import remote_engine, remote_plan
from edgechat.engine.types import CachePolicy
from edgechat.guide.engine import local_engine
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest
from edgechat.server.pool.available_models import AvailableModels
from edgechat.server.pool.pool import Pool


def real_pool(
    default: str,
    request: PlanRequest = DEFAULT_REQUEST,
    *,
    most_waiting: int = 32,
    idle_seconds: float | None = None,
    on_note: Callable[[str], None] = lambda _note: None,
) -> Pool:
    """Return the pool of a server. default: the model of who asks for none, a name or a path.

    request: for every model; who drafts, and to load it anyway, for the default only; adapters, for others
    only if they fit. idle_seconds: None is
    what settings.toml says, 0 never unloads. Reads the disk.

    Raises ModelNotFound, ModelFileError or SettingsError.
    """
    user_settings = settings.load()
    if idle_seconds is None:
        idle_seconds = 60 * user_settings.idle_minutes
    available = AvailableModels(default)
    return Pool(
        partial(_engine, idle_seconds, cache_policy(user_settings.state_bytes)),
        partial(prepare_model, request, available.default.wanted),
        available,
        most_waiting=most_waiting,
        on_note=on_note,
    )


def cache_policy(disk_bytes: int | None) -> CachePolicy:
    """Return what the worker of a server does between requests.

    Programs ask at once what they have to ask, so nothing is computed in advance. What answers of a form need
    is made with the load, so that the first one does not hold up others.
    """
    return CachePolicy(settle=False, disk_bytes=disk_bytes, grammars=True)


def _engine(
    idle_seconds: float,
    policy: CachePolicy,
    plan: LoadPlan,
    on_note: Callable[[str], None],
    on_state: Callable[[EngineState], None],
) -> Engine:
    if plan.remote is not None:
        return remote_engine(
            plan, settings.load(), idle_seconds=idle_seconds, on_note=on_note, on_state=on_state
        )
    return local_engine(
        plan, idle_seconds=idle_seconds, cache_policy=policy, on_state=on_state, on_note=on_note
    )


def prepare_model(
    request: PlanRequest,
    default: str,
    model: str,
    *,
    staying: Sequence[LoadPlan] = (),
    leaving: Sequence[LoadPlan] = (),
) -> LoadPlan:
    """Return how a model is loaded, or reached. See `real_pool`, and `prepare` for the rest."""
    if model != default:
        usual = request.adapters or ()
        adapters = None if usual else request.adapters
        request = msgspec.structs.replace(
            request,
            draft=None,
            anyway=False,
            adapters=adapters,
            usual_adapters=usual,
            runtime_quant=None,
        )
    if staying:  # rather than loading both anyway, the others are unloaded
        request = msgspec.structs.replace(request, anyway=False)
    remote = remote_plan(model, settings.load(), request)
    return remote or prepare(model, request, may_embed=True, staying=staying, leaving=leaving)
