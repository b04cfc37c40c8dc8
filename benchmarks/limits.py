"""Plans under a memory limit: everything that edgechat says fits must load and answer without being killed.

    python -m benchmarks.limits [--limits 2 4 8] [MODEL ...]

Needs root and a writable control group hierarchy (version 1 or 2). For each limit (in GiB) and model, two
plans are loaded in a group with that limit and asked something: the default plan, and the one with the
longest context that is said to fit, found by bisection. Without MODEL, uses the TinyLlama 1.1B shape in Q4_0,
Q8_0 and F16, and the Llama 3.2 3B shape in Q8_0, all trained on 131,072 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from edgechat.base.errors import DoesNotFit
from edgechat.base.text import mebibytes
from edgechat.device.memory import oom_kills
from edgechat.engine.types import ChatRequest, Finished, Message
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import DEFAULT_REQUEST, PlanRequest
from tests.kit import LLAMA_1B, TINYLLAMA, Spec, build

GIB = 2**30
GROUP = "edgechat-limits"


@dataclass(frozen=True, slots=True)
class Group:
    """A control group with a memory limit."""

    folder: Path
    limit: str
    """Name of the file that contains the limit."""

    @classmethod
    def make(cls, n_bytes: int) -> Group:
        """Create the group; the caller must remove it."""
        first = Path("/sys/fs/cgroup/memory")
        group = (
            cls(first / GROUP, "memory.limit_in_bytes")
            if first.is_dir()
            else cls(Path("/sys/fs/cgroup") / GROUP, "memory.max")
        )
        group.folder.mkdir(exist_ok=True)
        (group.folder / group.limit).write_text(str(n_bytes))
        return group

    def enter(self) -> None:
        """Move this process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


def models() -> list[Path]:
    """Return the models that were built for this benchmark."""
    longer = {"llama.context_length": 131072}
    small = [build(Spec(shape=TINYLLAMA, weights=kind, overrides=longer)) for kind in ("Q4_0", "Q8_0", "F16")]
    large = replace(LLAMA_1B, n_layers=28, n_embd=3072, n_heads=24)
    return [*small, build(Spec(shape=large, weights="Q8_0", overrides=longer))]


async def answers(plan: LoadPlan) -> str:
    """Load a plan and ask something; return the outcome as text."""
    notes: list[str] = []
    engine = EngineSupervisor(plan, idle_seconds=0, on_note=notes.append)
    try:
        request = ChatRequest(id="1", messages=(Message("user", "x" * 200),), max_tokens=8)
        async for event in engine.stream(request):
            if isinstance(event, Finished):
                told = f" after {len(notes)} steps down" if notes else ""
                return f"answered{told}"
        return "gave no answer"
    finally:
        await engine.close()


def longest(path: Path) -> LoadPlan | None:
    """Return the plan with the longest context that is said to fit, to within 1,024 tokens."""
    few, many, best = 0, 129, None
    while many - few > 1:
        middle = (few + many) // 2
        try:
            best, few = prepare(str(path), PlanRequest(context=middle * 1024)), middle
        except DoesNotFit:
            many = middle
    return best


def inside(paths: list[Path]) -> int:
    """Plan, load and ask; return how many loads failed."""
    failed = 0
    for path in paths:
        for kind in ("without wishes", "longest"):
            try:
                plan = prepare(str(path), DEFAULT_REQUEST) if kind == "without wishes" else longest(path)
            except DoesNotFit:
                plan = None
            if plan is None:
                print(f"  {path.name}, {kind}: said not to fit", flush=True)
                break
            kills = oom_kills()
            try:
                came = asyncio.run(answers(plan))
            except Exception as error:
                came, failed = f"FAILED: {type(error).__name__}: {error}", failed + 1
            killed = oom_kills() != kills
            failed += killed
            total, free = plan.total_bytes, plan.memory[0].budget_bytes
            print(
                f"  {path.name}, {kind}: context {plan.context} {plan.cache_type}, {mebibytes(total)} of "
                f"{mebibytes(free)}: {came}{', and something was KILLED' if killed else ''}",
                flush=True,
            )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--limits", nargs="+", type=float, default=[2, 4, 8])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    paths = options.models or models()
    if options.inside:
        return inside(paths)
    failed = 0
    for limit in options.limits:
        group = Group.make(int(limit * GIB))
        print(f"{limit:g} GiB", flush=True)
        command = [sys.executable, "-m", "benchmarks.limits", "--inside", *map(str, paths)]
        try:
            failed += subprocess.run(command, preexec_fn=group.enter, check=False).returncode
        finally:
            group.folder.rmdir()
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
