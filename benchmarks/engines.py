"""The same question to several engines (the own worker, llama-server, vLLM), by one client and by several.

    python -m benchmarks.engines [--clients 1 8] [--rounds 2] [--tokens 64] MODEL.gguf vllm:FOLDER ...

Each engine is planned and started as `edgechat run` does it, and is alone while it is asked. Every prompt is
new and has about 64 tokens. Told are the tokens/s of all clients together, the first token and the gap
between two pieces (medians), the memory of the engine's processes (unshared, where the system tells it), and
how long the start took.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time

import psutil

from edgechat.chat.session import SessionServices
from edgechat.engine.protocol import Engine
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Finished, Message, Sampling
from edgechat.planner.request import PlanRequest

QUESTION = (
    "Number {}: write a long story about a lighthouse keeper and her cat, on an island far away from "
    "the coast, and tell what they see in autumn when the first storm of the year comes from the west."
)


async def asked(engine: Engine, name: str, tokens: int) -> tuple[int, list[float]]:
    """Return how many tokens came, and the times of all pieces, the question's first."""
    times, n = [time.perf_counter()], 0
    request = ChatRequest(
        id=name,
        messages=(Message("user", QUESTION.format(name)),),
        sampling=Sampling(temperature=0.0),
        max_tokens=tokens,
    )
    async for event in engine.stream(request):
        if isinstance(event, Delta):
            times.append(time.perf_counter())
        elif isinstance(event, Finished):
            n = event.usage.completion_tokens
    return n, times


def memory() -> int:
    """Return the bytes of all processes that were started from here."""
    children = psutil.Process().children(recursive=True)
    return sum(getattr(one.memory_full_info(), "uss", 0) for one in children)


async def measure(model: str, clients: list[int], rounds: int, tokens: int) -> None:
    services = SessionServices.real(PlanRequest(context=4096))
    plan = await asyncio.to_thread(services.prepare, model)
    engine = services.engine(
        plan, idle_seconds=0, cache_policy=CachePolicy(), replan=lambda: plan, on_note=print
    )
    began = time.perf_counter()
    try:
        await engine.start()
        started = time.perf_counter() - began
        await asked(engine, "0", 8)
        for n in clients:
            rates, firsts, gaps = [], [], []
            for at in range(rounds):
                began = time.perf_counter()
                got = await asyncio.gather(*(asked(engine, f"{n}{at}{one}", tokens) for one in range(n)))
                rates.append(sum(count for count, _ in got) / (time.perf_counter() - began))
                firsts += [1000 * (times[1] - times[0]) for _, times in got]
                gaps += [1000 * (b - a) for _, times in got for a, b in itertools.pairwise(times[1:])]
            print(
                f"{plan.model_name}, {n} clients: {statistics.median(rates):.1f} tokens/s, first token "
                f"{statistics.median(firsts):.0f} ms, gap {statistics.median(gaps):.0f} ms, "
                f"{memory() / 2**20:.0f} MiB, started in {started:.1f} s",
                flush=True,
            )
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    for model in options.models:
        asyncio.run(measure(model, options.clients, options.rounds, options.tokens))


if __name__ == "__main__":
    main()
