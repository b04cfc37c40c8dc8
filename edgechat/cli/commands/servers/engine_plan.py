"""`edgechat plan MODEL --engine ENGINE`: what another program would take to run a model, and its command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence

from edgechat.base.errors import OptionWithoutEffect
from edgechat.base.text import mebibytes, one_line
from edgechat.cli.output.layout import sheet, styled
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import print_json
from edgechat.planner.machine import MachineDescription
from edgechat.planner.placement.engines.programs import split_engine
from edgechat.planner.plan import LoadPlan, as_json
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest


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
        plans = [prepare(name, request, described=described, must_run=False) for name in models]
    if json:
        objects = [as_json(plan) for plan in plans]
        print_json(objects[0] if len(objects) == 1 else objects)
    else:
        print("\n\n".join(sheet(_lines(plan), bold=styled(sys.stdout)) for plan in plans))
    return 0


def _lines(plan: LoadPlan) -> Iterator[tuple[str, str]]:
    yield "Model", f"{plan.model_name} {plan.quant or ''}".rstrip()
    yield "Context", f"{plan.context} tokens"
    for part in plan.memory:
        yield part.name, f"{mebibytes(part.total_bytes)} of {mebibytes(part.budget_bytes)} that can be used"
    for note in plan.notes:
        yield "Note", note
    yield "Why", "\n".join(plan.reasons)
    if plan.program is None:  # it was named beside others that a program runs
        return
    given = [f"{name}={value}" for name, value in plan.program.environment.items()]
    yield "Command", shlex.join([*given, *plan.program.command])
