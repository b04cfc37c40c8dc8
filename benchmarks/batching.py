"""Compares several concurrent streams through the worker with a bare batched decode loop of the same size.

    python -m benchmarks.batching [--model FILE] [--streams 4 8] [--rounds 12] [--depth 200] [--tokens 48]

Rounds alternate between the two. The bare loop decodes one fixed token of each sequence per call, without
sampling or producing text. `edgechat` samples (temperature 0.8), produces text and sends every token to
another process. The results count the tokens that arrive while all streams are running, and give the gaps
between the tokens of each stream.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.prompts import long_task
from benchmarks.streaming import MUTE, THREADS, spread
from edgechat.engine.types import ChatRequest, Delta, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.native import logs
from edgechat.native.handles import Context, Model
from edgechat.planner.plan import LoadPlan
from tests.kit import TINYLLAMA, Spec, build

Arrivals = list[tuple[float, int]]
"""Pairs of an arrival time and the number of tokens received by then."""


class Bare:
    """A llama_decode loop in which each call has one token of each sequence."""

    def __init__(self, plan: LoadPlan, n: int, depth: int) -> None:
        logs.install()
        self._model = Model(Path(plan.model_path), plan)
        self._context = Context(self._model, plan)
        self._n, self._depth = n, depth
        tokens = [5 + i % 200 for i in range(depth)]
        for seq in range(n):
            self._context.decode([(seq, 0, tokens, 0)])

    def run(self, tokens: int) -> float:
        """Rewind each sequence to its depth; return the total tokens/s over all sequences."""
        for seq in range(self._n):
            self._context.remove(seq, self._depth)
        began = time.perf_counter()
        for at in range(tokens):
            self._context.decode([(seq, self._depth + at, [5 + at], 1) for seq in range(self._n)])
        return self._n * tokens / (time.perf_counter() - began)

    def close(self) -> None:
        """Free the model and context."""
        self._context.close()
        self._model.close()


async def stream(engine: EngineSupervisor, name: str, text: str, tokens: int) -> Arrivals:
    """Return when each piece arrived, and the number of tokens received by then."""
    request = ChatRequest(
        id=name, messages=(Message("user", text),), sampling=Sampling(seed=len(name)), max_tokens=tokens
    )
    return [
        (time.perf_counter(), event.tokens)
        async for event in engine.stream(request)
        if isinstance(event, Delta)
    ]


async def together(engine: EngineSupervisor, number: int, texts: list[str], tokens: int) -> list[Arrivals]:
    """Run the streams concurrently; return when each one's tokens arrived."""
    streams = [stream(engine, f"{number}-{seq}", text, tokens) for seq, text in enumerate(texts)]
    return await asyncio.gather(*streams)


def rate(arrivals: list[Arrivals]) -> tuple[float, list[float]]:
    """Return the total tokens/s during the time in which all streams run, and the gaps between tokens."""
    begin = max(one[0][0] for one in arrivals)
    end = min(one[-1][0] for one in arrivals)
    inside = [[pair for pair in one if begin <= pair[0] <= end] for one in arrivals]
    done = sum(one[-1][1] - one[0][1] for one in inside if one)
    gaps = [b[0] - a[0] for one in inside for a, b in itertools.pairwise(one)]
    return done / (end - begin), gaps


async def measure(model: Path, texts: list[str], rounds: int, depth: int, tokens: int) -> None:
    """Alternate between the two, and print the ratio."""
    n = len(texts)
    plan = LoadPlan(
        model_path=str(model),
        model_name=model.name,
        context=n * (depth + 2 * tokens) + 512,
        threads=THREADS,
        n_seq_max=n,
        n_outputs_max=n,
    )
    engine, bare = EngineSupervisor(plan), Bare(plan, n, depth)
    await engine.start()
    rates: list[tuple[float, float]] = []
    gaps: list[float] = []
    for number in range(rounds):
        alone = bare.run(tokens + 16)  # in this thread, since OpenMP would start more threads for another
        arrivals = await together(engine, number, texts, tokens + 16)
        if number >= 2:  # the first rounds warm up the caches
            ours, between = rate(arrivals)
            rates.append((alone, ours))
            gaps += between
    ratios = [ours / alone for alone, ours in rates]
    alone, ours = (statistics.harmonic_mean(column) for column in zip(*rates, strict=True))
    print(
        f"{n} streams: bare {alone:.1f} tokens/s, edgechat {ours:.1f}: {ours / alone:.3f} of bare "
        f"({spread(ratios)}); gaps median "
        f"{1000 * statistics.median(gaps):.0f} ms, 99 of 100 under {1000 * np.quantile(gaps, 0.99):.0f} ms"
    )
    await engine.close()
    bare.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--streams", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--depth", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    model = options.model or build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000, mute=MUTE))
    for n in options.streams:
        # For the kit's models, each letter is one token.
        if options.model is None:
            texts = [(f"{seq} " + "x" * options.depth)[: options.depth - 24] for seq in range(n)]
        else:
            texts = [long_task(options.depth, seq) for seq in range(n)]
        asyncio.run(measure(model, texts, options.rounds, options.depth, options.tokens))


if __name__ == "__main__":
    main()
