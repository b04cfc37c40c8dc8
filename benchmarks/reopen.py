"""Reopening a conversation after a restart: time to first token, with and without its state from disk.

    python -m benchmarks.reopen [--tokens 2000] [--rounds 3] [--weights Q4_0]

In each round, a worker answers in a chat, leaves the chat, and exits. A second worker answers the next turn,
and a third one answers the same turn in a chat that it has never seen. The time to load the model is not
included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.streaming import MUTE, THREADS
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Finished, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan
from tests.kit import TINYLLAMA, Spec, build


async def ask(plan: LoadPlan, chat: str, name: str, messages: tuple[Message, ...]) -> tuple[str, Finished]:
    """Return the answer of a new worker, which leaves the chat before it exits."""
    engine = EngineSupervisor(plan, cache_policy=CachePolicy(settle=False))
    await engine.start()
    text = ""
    try:
        request = ChatRequest(
            id=name, chat=chat, messages=messages, sampling=Sampling(temperature=0), max_tokens=16
        )
        async for event in engine.stream(request):
            if isinstance(event, Delta):
                text += event.text
            elif isinstance(event, Finished):
                finished = event
        await engine.persist(chat)
    finally:
        await engine.close()
    return text, finished


async def measure(model: Path, tokens: int, rounds: int) -> None:
    """Print a line for each round, and the median."""
    plan = LoadPlan(model_path=str(model), model_name=model.name, context=tokens + 512, threads=THREADS)
    ratios = []
    for number in range(rounds):
        chat, stranger = f"{number:032x}", f"{number + 1000:032x}"
        first = (Message("user", "".join(chr(65 + i % 50) for i in range(tokens - 40))),)
        text, _ = await ask(plan, chat, f"first{number}", first)
        second = (*first, Message("assistant", text), Message("user", "And then?"))
        _, warm = await ask(plan, chat, f"warm{number}", second)
        _, cold = await ask(plan, stranger, f"cold{number}", second)
        ratios.append(warm.timings.ttft_ms / cold.timings.ttft_ms)
        print(
            f"{warm.usage.prompt_tokens} tokens, {warm.usage.cached_tokens} of them from disk: first token "
            f"after {warm.timings.ttft_ms:.0f} ms; cold ({cold.usage.cached_tokens} cached) "
            f"{cold.timings.ttft_ms:.0f} ms: {ratios[-1]:.3f}"
        )
    print(f"first token from disk, of the cold one: {statistics.median(ratios):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--weights", default="Q4_0")
    options = parser.parse_args()
    model = build(Spec(shape=TINYLLAMA, weights=options.weights, n_vocab=32000, mute=MUTE))
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGECHAT_HOME"] = home
        asyncio.run(measure(model, options.tokens, options.rounds))


if __name__ == "__main__":
    main()
