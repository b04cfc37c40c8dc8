"""Asks several engines (edgechat's worker, llama-server, vLLM) the same questions, from one or more clients.

    python -m benchmarks.engines MODEL.gguf vllm:FOLDER ... [--prompts 64 1024] [--clients 1 8 32]

Each engine is planned and started the way `edgechat run` does it, and runs alone while it is asked; to make
them take turns, name the models repeatedly. Each prompt consists of different words and has about the given
number of tokens. The output shows the total tokens/s of all clients, counting only replies; the median time
to first token; the gaps between pieces (median and 95th percentile); the memory of the engine's processes
(unshared, if the system reports it); and the startup time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterator

import psutil

from edgechat.chat.session import SessionServices
from edgechat.engine.protocol import Engine
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Finished, Message, Sampling
from edgechat.planner.request import PlanRequest

QUESTION = (
    "Write a long story about a lighthouse keeper and her cat, on an island far away from the coast, "
    "and tell what they see in autumn."
)
ALWAYS = 50
"""Approximate number of tokens in the chat template and the question."""


def prompts(length: int) -> Iterator[str]:
    """Yield prompts of about `length` tokens that differ from the first word on and end with the question."""
    for at in itertools.count():
        words = random.Random(at).choices(QUESTION.split(), k=max(1, length - ALWAYS))
        yield f"{' '.join(words)}\n\n{QUESTION}"


async def asked(engine: Engine, name: str, prompt: str, tokens: int) -> tuple[int, int, list[float]]:
    """Return the tokens generated and read, and the times of the question and of each piece of the reply."""
    times, n, read = [time.perf_counter()], 0, 0
    request = ChatRequest(
        id=name,
        messages=(Message("user", prompt),),
        sampling=Sampling(temperature=0.0),
        max_tokens=tokens,
    )
    async for event in engine.stream(request):
        if isinstance(event, Delta):
            times.append(time.perf_counter())
        elif isinstance(event, Finished):
            n, read = event.usage.completion_tokens, event.usage.prompt_tokens
    return n, read, times


def memory() -> int:
    """Return the total memory of all child processes, in bytes."""
    children = psutil.Process().children(recursive=True)
    return sum(getattr(one.memory_full_info(), "uss", 0) for one in children)


async def measure(model: str, options: argparse.Namespace) -> None:
    services = SessionServices.real(PlanRequest(context=options.context))
    plan = await asyncio.to_thread(services.prepare, model)
    engine = services.engine(
        plan, idle_seconds=0, cache_policy=CachePolicy(), replan=lambda: plan, on_note=print
    )
    texts = {length: prompts(length) for length in options.prompts}
    began = time.perf_counter()
    try:
        await engine.start()
        started = time.perf_counter() - began
        await asked(engine, "0", "Hi", 8)
        for length, n in itertools.product(options.prompts, options.clients):
            rates, firsts, gaps, read = [], [], [], 0
            for at in range(max(1, options.answers // n)):
                began = time.perf_counter()
                got = await asyncio.gather(
                    *(
                        asked(engine, f"{n}.{at}.{one}", next(texts[length]), options.tokens)
                        for one in range(n)
                    )
                )
                rates.append(sum(count for count, _, _ in got) / (time.perf_counter() - began))
                firsts += [1000 * (times[1] - times[0]) for _, _, times in got]
                gaps += [1000 * (b - a) for _, _, times in got for a, b in itertools.pairwise(times[1:])]
                read = got[0][1]
            print(
                f"{plan.model_name}, {n} clients, {read} tokens: {statistics.median(rates):.1f} tokens/s, "
                f"first token {statistics.median(firsts):.0f} ms, gap {statistics.median(gaps):.0f} "
                f"({statistics.quantiles(gaps, n=20)[-1]:.0f}) ms, {memory() / 2**20:.0f} MiB, "
                f"started in {started:.1f} s",
                flush=True,
            )
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--prompts", type=int, nargs="+", default=[64, 1024], help="their tokens")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--answers", type=int, default=8, help="at least, of each case")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--context", type=int, default=16384, help="tokens")
    options = parser.parse_args()
    for model in options.models:
        asyncio.run(measure(model, options))


if __name__ == "__main__":
    main()
