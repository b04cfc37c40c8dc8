"""`edgechat plan` and `show` of what edgechat does not load itself: ENGINE:MODEL, and NAME/MODEL of a remote.

A program's plan is what it would take, and its command; a server is asked what it tells of the model.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Iterator, Sequence

from edgechat import settings
from edgechat.base.errors import OptionWithoutEffect
from edgechat.base.text import figure, mebibytes, one_line
from edgechat.cli.output.layout import sheet, styled
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import note, print_json
from edgechat.engine.remote.choice import remote_engine, remote_plan
from edgechat.models.remote.model import KINDS, HostedModel
from edgechat.planner.machine import MachineDescription
from edgechat.planner.placement.programs import split_engine
from edgechat.planner.plan import LoadPlan, as_json
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from edgechat.settings import Settings


def run(models: Sequence[str], request: PlanRequest, described: MachineDescription, *, json: bool) -> int:
    """Run the command; return the exit code. Raises EdgechatError, DoesNotFit among it."""
    unpredicted = [name for name in models if split_engine(name)[0] not in (None, "llama-server")]
    if described.bandwidth is not None and unpredicted:
        name = one_line(unpredicted[0], 100)
        raise OptionWithoutEffect(
            f"--bandwidth has no effect on {name}, of which no speed is predicted.", hint="Omit it."
        )
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        plans = [_plan(name, request, described) for name in models]
    if json:
        objects = [as_json(plan) for plan in plans]
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        print("\n\n".join(sheet(_lines(plan), bold=styled(sys.stdout)) for plan in plans))
    return 0


def _plan(name: str, request: PlanRequest, described: MachineDescription) -> LoadPlan:
    config = settings.load()
    remote = remote_plan(name, config, request)
    if remote is None:
        return prepare(name, request, described=described, must_run=False)
    if described != MachineDescription():
        raise OptionWithoutEffect(
            f"{one_line(name, 100)} runs on another server, whatever this machine has.",
            hint="Omit --ram, --vram and --bandwidth.",
        )
    return asyncio.run(_asked(remote, config))


async def _asked(plan: LoadPlan, config: Settings) -> LoadPlan:
    """Return the plan with what the server tells of the model."""
    engine = remote_engine(plan, config, idle_seconds=0, on_note=note)
    try:
        await engine.start()
        return engine.plan
    finally:
        await engine.close()


def _lines(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    yield "Model", f"{plan.model_name} {plan.quant or ''}".rstrip()
    if plan.remote is not None and plan.program is None:
        yield from _remote_lines(plan, plan.remote)
        return
    yield "Context", f"{plan.context} tokens"
    for part in plan.memory:
        yield part.name, f"{mebibytes(part.total_bytes)} of {mebibytes(part.budget_bytes)} that can be used"
    for text in plan.notes:
        yield "Note", text
    yield "Why", "\n".join(plan.reasons)
    if plan.program is None:  # it was named beside others that a program runs
        return
    given = [f"{name}={value}" for name, value in plan.program.environment.items()]
    yield "Command", shlex.join([*given, *plan.program.command])


def _remote_lines(plan: LoadPlan, remote: HostedModel) -> Iterator[tuple[str, str]]:
    yield "Server", f"{KINDS[remote.kind]} at {remote.url}"
    told = "" if remote.context else " (assumed: the server does not tell)"
    yield "Context", f"{plan.context} tokens{told}"
    if remote.n_params:
        yield "Size", f"{figure(remote.n_params / 1e9)} billion parameters"
    able = {
        "sees images": remote.sees,
        "hears sounds": remote.hears,
        "calls tools": remote.has_tools,
        "its thinking can be switched": remote.can_switch_thinking,
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
