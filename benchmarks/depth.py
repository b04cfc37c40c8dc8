"""Long chats: flash and plain attention by depth, edgechat's choice between them, and its predictions.

    python -m benchmarks.depth MODEL.gguf [--rounds 6] [--tokens 16] [--depths 1000,2000,4000]

Bare `llama_decode` loops with and without flash attention take turns with edgechat's worker, which loads the
model as planned. All start at the same depth, with the cells before it cached. The ratio covers all rounds
and is relative to the faster loop. Then the predictions made before the first load are compared with the loop
that uses the planned kind of attention, both for decoding and for reading 500 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from pathlib import Path

from benchmarks.prompts import long_task
from benchmarks.streaming import Bare, through_worker
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest

ROOM = 768
"""Tokens of context after the deepest prompt."""
PART = 500
_TRIES = 3
"""Try up to this many times the requested rounds, since replies of a real model may be too short to count."""


async def product(plan: LoadPlan, kinds: list[Bare], depths: list[int], rounds: int, tokens: int) -> None:
    """Alternate between all three; print edgechat's speed relative to the faster bare loop."""
    engine = EngineSupervisor(plan)
    await engine.start()
    for number, depth in enumerate(depths):
        rows: list[tuple[float, ...]] = []
        for _ in range(_TRIES * rounds):
            if len(rows) > rounds:
                break
            if found := await through_worker(engine, long_task(depth, number), len(rows), tokens, 0.8):
                rate, _, reached = found
                rows.append((rate, *[await asyncio.to_thread(bare.run, reached, tokens) for bare in kinds]))
        own, flash, plain = (statistics.harmonic_mean(column) for column in zip(*rows[1:], strict=True))
        print(
            f"depth {depth}: bare flash {flash:.1f}, plain {plain:.1f}, edgechat {own:.1f} tokens/s, "
            f"{own / max(flash, plain):.3f} of the better ({len(rows) - 1} rounds)"
        )
    await engine.close()


def predictions(plan: LoadPlan, bare: Bare, rounds: int, tokens: int) -> None:
    """Print the predictions next to the speeds of a bare loop."""
    assert plan.predicted is not None
    for one in plan.predicted.by_depth:
        if one.depth + PART > plan.context:
            break
        decode = statistics.median(bare.run(max(1, one.depth), tokens) for _ in range(rounds))
        prompt = statistics.median(bare.read(one.depth, PART) for _ in range(rounds))
        print(
            f"depth {one.depth}: decode predicted {one.decode_tps:.1f}, measured {decode:.1f} tokens/s "
            f"({one.decode_tps / decode:.2f}); prompts {one.prompt_tps:.0f} and {prompt:.0f} "
            f"({one.prompt_tps / prompt:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--depths", default="1000,2000,4000")
    options = parser.parse_args()
    depths = [int(depth) for depth in options.depths.split(",")]
    request = PlanRequest(context=max(depths) + ROOM, draft="none")
    plan = prepare(str(options.model), request)
    kind = "flash" if plan.flash_attention else "plain"
    print(f"{options.model.name}, {plan.threads} threads, {os.cpu_count()} cores; planned: {kind} attention")
    kinds = [Bare(options.model, plan.context, flash=flash) for flash in (True, False)]
    predictions(plan, kinds[0 if plan.flash_attention else 1], min(3, options.rounds), options.tokens)
    asyncio.run(product(plan, kinds, depths, options.rounds, options.tokens))


if __name__ == "__main__":
    main()
