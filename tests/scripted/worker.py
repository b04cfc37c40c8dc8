"""The worker process, with the tests' backend for models that have a script."""

from __future__ import annotations

from collections.abc import Callable

from edgechat.engine.backends.base import Backend
from edgechat.engine.worker import worker
from edgechat.planner.plan import LoadPlan
from tests.scripted.backend import ScriptedBackend, script_of


def open_backend(plan: LoadPlan, progress: Callable[[float], None] | None) -> Backend:
    if plan.backend == "llama.cpp" and script_of(plan.model_path) is not None:
        return ScriptedBackend(plan, progress)
    return worker.open_backend(plan, progress)


def main() -> None:
    worker.main(open_backend)
