"""A conversation many times longer than the context: first token, memory and speed before and after overflow.

    python -m benchmarks.overflow [--context 1024] [--times 20]

Every turn adds the same number of tokens; between turns the engine settles, as it does while a user reads.
The engine runs in this process, whose memory is checked after each turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.streaming import MUTE, THREADS
from edgechat.engine.backends.llama_cpp import LlamaCppBackend
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import CachePolicy, ChatRequest, Delta, Finished, Message, Prewarmed, Sampling
from edgechat.planner.plan import LoadPlan
from tests.kit import TINYLLAMA, Spec, build

QUESTION, REPLY = 60, 48
"""Tokens in each question and reply, not counting those added by the template."""


@dataclass
class Turn:
    """The cost of one turn."""

    usage_tokens: int
    dropped: int
    ttft_ms: float
    decode_tps: float
    computed: int
    settled: int
    """Tokens computed between this turn and the next."""
    seconds_to_settle: float
    memory: int


def run(engine: EngineCore, total: int, tell: Callable[[Turn], None]) -> list[Turn]:
    """Chat until `total` tokens have been exchanged."""
    process = psutil.Process()
    messages: list[Message] = []
    turns: list[Turn] = []
    said = 0
    while said < total:
        text = (f"{len(turns)} " + "".join(chr(65 + (7 * len(turns) + i) % 50) for i in range(QUESTION)))[
            :QUESTION
        ]
        messages.append(Message("user", text))
        engine.submit(
            ChatRequest(
                id=str(len(turns)),
                chat="00" * 16,
                messages=tuple(messages),
                sampling=Sampling(seed=len(turns)),
                max_tokens=REPLY,
            )
        )
        reply, settled, done = "", 0, time.perf_counter()
        while not engine.is_idle:
            for event in engine.step():
                if isinstance(event, Delta):
                    reply += event.text
                elif isinstance(event, Finished):
                    end, done = event, time.perf_counter()
                elif isinstance(event, Prewarmed):
                    settled = event.computed
        messages.append(Message("assistant", reply))
        said += QUESTION + end.usage.completion_tokens
        turns.append(
            Turn(
                usage_tokens=end.usage.prompt_tokens + end.usage.completion_tokens,
                dropped=end.usage.dropped_turns,
                ttft_ms=end.timings.ttft_ms,
                decode_tps=end.timings.decode_tps,
                computed=end.usage.prompt_tokens - end.usage.cached_tokens,
                settled=settled,
                seconds_to_settle=time.perf_counter() - done,
                memory=process.memory_info().rss,
            )
        )
        tell(turns[-1])
    return turns


def report(turns: list[Turn]) -> None:
    """Compare the figures before and after the first overflow at the same depths."""
    first = next(at for at, turn in enumerate(turns) if turn.dropped)
    before, after = turns[1:first], turns[first:]
    depths = [turn.usage_tokens for turn in after]
    alike = [turn for turn in before if min(depths) - 100 <= turn.usage_tokens <= max(depths) + 100] or before
    computed = sorted({turn.computed for turn in turns[1:]})
    print(f"{len(turns)} turns, the first overflow in turn {first}; tokens computed in a turn: {computed}")
    for name, of in (("first token", lambda turn: turn.ttft_ms), ("decode", lambda turn: turn.decode_tps)):
        a, b = statistics.median(map(of, alike)), statistics.median(map(of, after))
        unit = "ms" if name == "first token" else "tokens/s"
        print(f"{name}: median {a:.1f} {unit} before, {b:.1f} after: {b / a:.3f}")
    a, b = after[len(after) // 10].memory, after[-1].memory
    print(f"memory: {a / 2**20:.1f} MiB soon after the overflow, {b / 2**20:.1f} at the end: {b / a:.4f}")
    settling = [turn.seconds_to_settle for turn in after]
    cuts = sum(turn.settled > 200 for turn in after)
    print(f"settling: median {statistics.median(settling):.2f} s, longest {max(settling):.2f} s; {cuts} cuts")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--times", type=float, default=20)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    model = options.model or build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000, mute=MUTE))
    plan = LoadPlan(model_path=str(model), model_name=model.name, context=options.context, threads=THREADS)
    backend = LlamaCppBackend(plan)
    engine = EngineCore(backend, ChatTemplate(backend.chat_template), cache_policy=CachePolicy(disk_bytes=0))
    engine.warm_up()
    try:
        tell = print if options.verbose else (lambda _turn: None)
        report(run(engine, int(options.times * options.context), tell))
    finally:
        engine.close()


if __name__ == "__main__":
    main()
