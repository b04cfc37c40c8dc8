"""Remote choice: finds the server that a model name NAME/MODEL refers to; returns its plan and engine."""

from __future__ import annotations

from collections.abc import Callable

from edgechat.base.errors import RemoteDenied
from edgechat.base.text import one_line
from edgechat.engine.protocol import EngineState
from edgechat.engine.remote.engine import RemoteEngine, RemoteHost, RunningHost
from edgechat.engine.remote.started import StartedHost
from edgechat.models.remote.measured import measured_speeds
from edgechat.models.remote.model import HostedModel, root_of, split_remote
from edgechat.planner.estimate.speed import Prediction
from edgechat.planner.plan import LoadPlan
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest, without_effect
from edgechat.settings import Settings

ASSUMED_CONTEXT = 8192
"""Context assumed for servers that do not report one, in tokens."""


def remote_plan(model: str, settings: Settings, request: PlanRequest = DEFAULT_REQUEST) -> LoadPlan | None:
    """Return the plan for a model NAME/MODEL, or None for a file or if NAME is not a remote. Sends nothing.

    request: its context is assumed if the server does not report one; it defaults to the context in
    settings.toml, then to 8192. Raises OptionWithoutEffect.
    """
    found = split_remote(model, settings.remotes)
    if found is None:
        return None
    name, id = found
    server = settings.remotes[name]
    remote = HostedModel(server=name, id=id, kind=server.kind or "openai", url=root_of(server.url))
    notes = without_effect(request, settings, ("context",), one_line(remote.name, 100), "another server")
    if request.context is not None:
        notes = (*notes, "--ctx applies only if the server does not report its own context.")
    speed = measured_speeds().get(remote.name)
    return LoadPlan(
        model_path="",
        model_name=remote.name,
        context=request.context or settings.context or ASSUMED_CONTEXT,
        sampling=settings.sampling,
        predicted=None
        if speed is None
        else Prediction(
            decode_tps=speed.decode_tps,
            prompt_tps=0.0,
            ttft_ms=speed.ttft_ms,
            basis="measured in earlier answers",
        ),
        remote=remote,
        notes=notes,
    )


def remote_engine(
    plan: LoadPlan,
    settings: Settings,
    *,
    idle_seconds: float,
    on_note: Callable[[str], None],
    on_state: Callable[[EngineState], None] | None = None,
) -> RemoteEngine:
    """Return an unconnected engine for a remote plan. Raises RemoteDenied if the server was removed.

    If the plan has a program, the engine starts it, and ends it when idle.
    """
    assert plan.remote is not None
    host: RemoteHost
    if plan.program is not None:
        host = StartedHost(plan.program, plan.remote.name)
    elif (server := settings.remotes.get(plan.remote.server)) is not None:
        host = RunningHost(server)
    else:
        raise RemoteDenied(f"{plan.remote.server} was removed from settings.toml.")
    return RemoteEngine(plan, host, idle_seconds=idle_seconds, on_note=on_note, on_state=on_state)
