"""A long prompt in chunks: how long the calls take, what chunks cost, and what they do to another stream.

    python -m benchmarks.prefill [--prompt 1700] [--rounds 3]

The engine runs in this process, so that every decode call can be timed. The reference is the same prompt
in calls of 512 tokens, which is the fastest way on this machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edgechat.engine.backends.base import BatchPart, Logits
from edgechat.engine.backends.llama_cpp import LlamaCppBackend
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import ChatRequest, Delta, Message, Sampling
from edgechat.planner.plan import LoadPlan
from tests.kit import TINYLLAMA, Spec, build

THREADS = 2


class Timed(LlamaCppBackend):
    """A backend that records the duration in seconds and the number of tokens of every call."""

    calls: list[tuple[int, float]]

    def decode(self, parts: Sequence[BatchPart]) -> Logits:
        """Time a call."""
        return self._timed(super().decode, parts)

    def decode_interruptibly(self, parts: Sequence[BatchPart]) -> Logits:
        """Time a call, which is never interrupted here."""
        return self._timed(super().decode_interruptibly, parts)

    def _timed(self, decode: Callable[[Sequence[BatchPart]], Logits], parts: Sequence[BatchPart]) -> Logits:
        began = time.perf_counter()
        rows = decode(parts)
        self.calls.append((sum(len(part.tokens) for part in parts), time.perf_counter() - began))
        return rows


def open_engine(model: Path) -> EngineCore:
    plan = LoadPlan(model_path=str(model), model_name=model.name, context=2048 + 512, threads=THREADS)
    Timed.calls = []
    backend = Timed(plan)
    engine = EngineCore(backend, ChatTemplate(backend.chat_template))
    engine.warm_up()
    return engine


def whole(engine: EngineCore, n_prompt: int) -> float:
    """Return how long a prompt takes, in seconds, with calls that are as large as possible."""
    while engine.scheduler.cache.evict():
        pass
    began = time.perf_counter()
    for at in range(0, n_prompt, 512):
        size = min(512, n_prompt - at)
        engine.backend.decode(
            [BatchPart(0, at, [65 + i % 50 for i in range(size)], int(at + size == n_prompt))]
        )
    seconds = time.perf_counter() - began
    engine.backend.truncate(0, 0)
    return seconds


def ask(engine: EngineCore, name: str, n_prompt: int, max_tokens: int) -> None:
    text = (f"{name} " + "".join(chr(65 + i % 50) for i in range(n_prompt)))[: n_prompt - 24]
    said = (Message("user", text),)
    engine.submit(ChatRequest(id=name, messages=said, sampling=Sampling(seed=1), max_tokens=max_tokens))


def alone(engine: EngineCore, name: str, n_prompt: int) -> tuple[float, list[tuple[int, float]]]:
    """Return a prompt's time to first token in seconds, with nothing else running, and its calls."""
    Timed.calls.clear()
    began = time.perf_counter()
    ask(engine, name, n_prompt, 1)
    while not engine.is_idle:
        engine.step()
    return time.perf_counter() - began, list(Timed.calls)


def beside_a_stream(engine: EngineCore, name: str, n_prompt: int) -> tuple[float, list[float]]:
    """Return the time to first token for a prompt that arrives during a stream, and the stream's gaps."""
    ask(engine, "stream" + name, 100, 2000)
    stamps: list[float] = []
    asked = 0.0
    while True:
        events = [event for event in engine.step() if isinstance(event, Delta)]
        now = time.perf_counter()
        if any(event.request_id == name for event in events):
            engine.cancel("stream" + name)
            gaps = [b - a for a, b in itertools.pairwise(stamps) if b > asked]
            while not engine.is_idle:
                engine.step()
            return now - asked, gaps
        stamps += [now] * any(event.request_id == "stream" + name for event in events)
        if len(stamps) == 20 and not asked:
            asked = now
            ask(engine, name, n_prompt, 4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", type=int, default=1700)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000, mute=(257, 258)))
    engine = open_engine(model)
    print(f"{model.name}, {THREADS} threads, a prompt of {options.prompt} tokens")
    ratios, ratios_beside = [], []
    for number in range(options.rounds):
        reference = whole(engine, options.prompt)
        first, calls = alone(engine, f"a{number}", options.prompt)
        later, gaps = beside_a_stream(engine, f"b{number}", options.prompt)
        ratios.append(reference / first)
        ratios_beside.append(reference / later)
        longest = max(seconds for _, seconds in calls[3:])
        print(
            f"calls of 512: {reference:.2f} s; in {len(calls)} chunks: {first:.2f} s, longest call "
            f"{1000 * longest:.0f} ms, median {statistics.median(n for n, _ in calls):.0f} tokens; beside a "
            f"stream: {later:.2f} s, gaps median {1000 * statistics.median(gaps):.0f}, "
            f"longest {1000 * max(gaps):.0f} ms"
        )
    print(
        f"prefill speed, of calls of 512: alone {statistics.median(ratios):.2f}, "
        f"beside a stream {statistics.median(ratios_beside):.2f}"
    )
    engine.close()


if __name__ == "__main__":
    main()
