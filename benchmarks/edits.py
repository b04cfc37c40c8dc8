"""Time to first token after editing a message in a long chat, for caches that can and cannot be truncated.

    python -m benchmarks.edits [--tokens 4000] [--sizes 60 130 500] [--rounds 7] [--model FILE.gguf]

Uses three models of the same size from tests/kit: dense, windowed (Gemma 3's pattern) and hybrid (LFM2's);
--model replaces them. Each model reads a chat with a given number of tokens, then its third-last message is
edited. The time to first token is measured for the new chat and after the edit, with and without checkpoints.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edgechat.engine.backends.llama_cpp import LlamaCppBackend
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import CachePolicy, ChatRequest, Finished, Message, Sampling
from edgechat.planner.plan import LoadPlan
from tests.kit import HYBRID, QWEN3, WINDOWED, Spec, build

THREADS = 2
BUDGET = 2**30
SIZE = {"n_embd": 512, "n_ff": 1536, "n_heads": 8, "n_kv_heads": 2, "head_dim": 64, "context_length": 32768}
SHAPES = {
    "dense": QWEN3.sized(n_layers=6, **SIZE),
    "windowed": WINDOWED.sized(n_layers=6, window=512, **SIZE),
    "hybrid": HYBRID.sized(n_layers=6, conv_layers=(0, 1, 3, 4), **SIZE),
}


@dataclass(slots=True)
class Subject:
    """A loaded model, with its times to the first token in milliseconds."""

    name: str
    engine: EngineCore
    cold: list[float] = field(default_factory=list)
    edited: list[float] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)


def open_engine(model: Path, context: int, budget: int) -> EngineCore:
    plan = LoadPlan(
        model_path=str(model),
        model_name=model.name,
        context=context,
        threads=THREADS,
        checkpoint_bytes=budget,
    )
    backend = LlamaCppBackend(plan)
    template = ChatTemplate(backend.chat_template)
    engine = EngineCore(backend, template, cache_policy=CachePolicy(settle=False, disk_bytes=0))
    engine.warm_up()
    return engine


def chat(engine: EngineCore, n_tokens: int, size: int, seed: int) -> list[Message]:
    """Return a chat of about `n_tokens` that ends with a question; each message has about `size` tokens."""
    words = [f"{(seed * 7919 + at * 104729) % 9973} " for at in range(2 * n_tokens)]
    tokens = [len(engine.backend.vocabulary.tokenize(word, bos=False, special=False)) for word in words]
    messages: list[Message] = []
    at = said = 0
    while said < n_tokens or len(messages) % 2 == 0:
        text, length = "", 0
        while length < size - 5:
            text, length, at = text + words[at], length + tokens[at], at + 1
        messages.append(Message(("user", "assistant")[len(messages) % 2], text))
        said += size
    return messages


def ask(engine: EngineCore, name: str, messages: list[Message]) -> Finished:
    engine.submit(
        ChatRequest(id=name, messages=tuple(messages), sampling=Sampling(temperature=0), max_tokens=8)
    )
    finished = None
    while not engine.is_idle:
        for event in engine.step():
            finished = event if isinstance(event, Finished) else finished
    assert finished is not None
    return finished


def measure(subject: Subject, n_tokens: int, size: int, seed: int) -> None:
    engine = subject.engine
    while engine.scheduler.cache.evict():
        pass
    messages = chat(engine, n_tokens, size, seed)
    subject.cold.append(ask(engine, "cold", messages).timings.ttft_ms)
    messages[-3] = Message(messages[-3].role, f"No: {messages[-3].content[4:]}")
    edited = ask(engine, "edited", messages)
    subject.edited.append(edited.timings.ttft_ms)
    subject.computed.append(edited.usage.prompt_tokens - edited.usage.cached_tokens)


@contextlib.contextmanager
def subjects(models: dict[str, Path], context: int) -> Iterator[list[Subject]]:
    """Load every model with checkpoints, and again without them if it uses any."""
    loaded: list[Subject] = []
    try:
        for name, path in models.items():
            loaded.append(Subject(name, open_engine(path, context, BUDGET)))
            if loaded[-1].engine.backend.checkpoint_bytes:
                loaded.append(Subject(f"{name}, none", open_engine(path, context, 0)))
        yield loaded
    finally:
        for subject in loaded:
            subject.engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[60, 130, 500])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", type=Path, action="append", default=[])
    options = parser.parse_args()
    models = {
        name: build(Spec(shape=shape, weights="Q4_0", name=f"edits-{name}")) for name, shape in SHAPES.items()
    }
    if options.model:
        models = {path.stem: path for path in options.model}
    print(f"{'tokens a message':>16}  {'model':<24}{'cold':>9}{'edited':>9}{'computed':>10}{'of dense':>10}")
    for size in options.sizes:
        with subjects(models, 3 * options.tokens // 2 + 6 * size + 512) as loaded:
            for seed in range(options.rounds):
                for subject in loaded:
                    measure(subject, options.tokens, size, seed)
            first = loaded[0]
            for one in loaded:
                ratios = [a / b for a, b in zip(one.edited, first.edited, strict=True)]
                print(
                    f"{size:>16}  {one.name:<24}{statistics.median(one.cold):>6.0f} ms"
                    f"{statistics.median(one.edited):>6.0f} ms{statistics.median(one.computed):>10.0f}"
                    f"{statistics.median(ratios):>10.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
