"""Compares plans with reality: the memory of each buffer, the process's peak memory, and the speed.

    python -m benchmarks.fit [--prompt 1000] [--reply 96] [--rounds 1] [--small] [MODEL ...]

Every model is loaded rounds + 1 times by the worker and answers three prompts each time. It is planned again
before each load, and the results are compared with that plan and its predictions. At first, the predictions
rely on the kernel probe alone; later, they also use what was learned from earlier loads. Speeds are predicted
for a prompt of 1,000 tokens. Without MODEL, the benchmark uses the kit's four kinds of tiny models, and
models in the TinyLlama 1.1B shape in Q4_0, Q4_K_M, Q8_0 and F16, which --small leaves out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.prompts import prompt
from edgechat.engine.types import ChatRequest, Finished, Message, ModelInfo, Sampling
from edgechat.engine.worker.load_report import differences
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.native.params import Buffer
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import Q4_K_M, TINYLLAMA, Spec, build, tiny
from tests.kit.build import MODELS_DIR

MIB = 2**20
CONTEXT = 2048
ANSWERS = 3


class Peak:
    """Samples a process's private memory continuously and records the peak."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._path = Path(f"/proc/{pid}/status")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._done.wait(0.01):
            for line in self._path.read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.bytes = max(self.bytes, int(line.split()[1]) * 1024)

    def close(self) -> int:
        """Stop sampling; return the peak in bytes."""
        self._done.set()
        self._thread.join()
        return self.bytes


def models(small: bool) -> list[Path]:
    """Return the models that were built for this benchmark."""
    made = [tiny(kind) for kind in ("dense", "windowed", "hybrid", "moe")]
    if not small:
        mixed = {"Q4_K": Q4_K_M}
        kinds = ("Q4_0", "Q4_K", "Q8_0", "F16")
        made += [build(Spec(shape=TINYLLAMA, weights=kind, types=mixed.get(kind, {}))) for kind in kinds]
    return made


def own(plan: LoadPlan, buffers: tuple[Buffer, ...]) -> int:
    """Return how many bytes of a plan are private memory of the process, not mapped from the file."""
    mapped = sum(one.weights for one in buffers if one.name == "CPU")
    return plan.total_bytes - mapped


async def load(plan: LoadPlan, prompts: list[str], reply: int) -> tuple[ModelInfo, int, list[Finished]]:
    """Load a model and have it answer; return the model, its peak memory, and the Finished events."""
    engine = EngineSupervisor(plan, idle_seconds=0)
    try:
        model = await engine.start()
        assert engine._worker is not None
        peak = Peak(engine._worker._process.pid)
        ends: list[Finished] = []
        for number, asked in enumerate(prompts):
            request = ChatRequest(
                id=str(number),
                messages=(Message("user", asked),),
                sampling=Sampling(temperature=1.0, seed=1),
                max_tokens=reply,
            )
            ends += [event async for event in engine.stream(request) if isinstance(event, Finished)]
        return model, peak.close(), ends
    finally:
        await engine.close()


def text(path: Path, n_tokens: int, seed: int) -> str:
    """Return text of about `n_tokens`, including the template's: words, or letters for the kit's models."""
    if MODELS_DIR in path.parents:
        return "".join(random.Random(seed).choices("xyz", k=n_tokens - 40))
    return prompt(n_tokens, seed)


def measure(path: Path, rounds: int, n_prompt: int, reply: int) -> None:
    """Measure one model and print the results."""
    errors: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        plan = prepare(str(path), PlanRequest(context=CONTEXT))
        seeds = range(number * ANSWERS, (number + 1) * ANSWERS)
        model, peak, ends = asyncio.run(load(plan, [text(path, n_prompt, seed) for seed in seeds], reply))
        assert plan.predicted is not None
        decode = statistics.median(end.timings.decode_tps for end in ends)
        prefill = statistics.median(end.timings.prompt_tps for end in ends)
        if number == 0:
            wrong = differences(plan.buffers, model.buffers)
            largest = max(
                (abs(a.total - b.total) for a, b in zip(plan.buffers, model.buffers, strict=True)), default=0
            )
            print(f"\n{path.name}: {plan.total_bytes / MIB:.0f} MiB planned, {len(plan.buffers)} buffers")
            print(f"  largest difference of a buffer {largest} bytes; beyond tolerance: {wrong or 'none'}")
        planned = own(plan, plan.buffers)
        print(
            f"  own memory {planned / MIB:.0f} MiB planned, {peak / MIB:.0f} at its peak "
            f"({(peak - planned) / MIB:+.0f} MiB, {peak / planned - 1:+.1%}); "
            f"decode {plan.predicted.decode_tps:.1f} predicted, {decode:.1f} measured; "
            f"prompt {plan.predicted.prompt_tps:.0f} predicted, {prefill:.0f} measured "
            f"({ends[-1].usage.prompt_tokens} tokens)",
            flush=True,
        )
        errors.append((plan.predicted.decode_tps / decode - 1, plan.predicted.prompt_tps / prefill - 1))
    print(f"  before the first load: decode off by {errors[0][0]:+.1%}, prompt by {errors[0][1]:+.1%}")
    later = [statistics.median(abs(one[i]) for one in errors[1:]) for i in range(2)]
    print(f"  after one load: decode off by {later[0]:.1%}, prompt by {later[1]:.1%} (median of {rounds})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--reply", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home  # nothing is known about this machine at first
        began = time.perf_counter()
        for path in options.models or models(options.small):
            measure(path, options.rounds, options.prompt, options.reply)
        print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
