"""Loads a model in a control group with little memory.

    python -m tests.planner.pressure MODEL SCENARIO

Prints the outcome as JSON. Scenarios: 'taken' (another program takes 340 MiB between plan and load), 'killed'
(the plan is so wrong that Linux kills the worker), 'anyway' (the same, and the user insisted).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import msgspec

from edgechat.base.errors import EdgechatError
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest

_HOG = "import sys; held = b'x' * (340 << 20); print('held', flush=True); sys.stdin.read()"


async def load(plan: LoadPlan) -> dict[str, object]:
    """Return what the user is told, and what was finally loaded."""
    told: list[str] = []
    engine = EngineSupervisor(plan, on_note=told.append)
    request = ChatRequest(
        id="r", messages=(Message("user", "Hello."),), sampling=Sampling(temperature=0.0), max_tokens=8
    )
    said = finished = ""
    try:
        async for event in engine.stream(request):
            if isinstance(event, Delta):
                said += event.text
            elif isinstance(event, Finished):
                finished = event.reason
    except EdgechatError as error:
        return {"told": told, "error": type(error).__name__, "message": error.message}
    finally:
        await engine.close()
    made = engine.plan
    return {
        "told": told,
        "said": said,
        "finished": finished,
        "context": made.context,
        "cache_type": made.cache_type,
        "n_ubatch": made.n_ubatch,
        "exact": bool(made.buffers),
    }


def main(model: str, scenario: str) -> None:
    """Run a scenario."""
    if scenario == "taken":
        plan = prepare(model, PlanRequest(context=32768, cache_type="f16", threads=1))
        with subprocess.Popen([sys.executable, "-c", _HOG], stdin=-1, stdout=-1) as hog:
            assert hog.stdout is not None
            hog.stdout.readline()
            found = asyncio.run(load(plan))
            hog.kill()
    else:
        plan = prepare(model, PlanRequest(context=65536, cache_type="f16", threads=1, anyway=True))
        wrong = msgspec.structs.replace(plan, memory=(), anyway=scenario == "anyway")
        found = asyncio.run(load(wrong))
    print(json.dumps({"budget": [one.budget_bytes for one in plan.memory], **found}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
