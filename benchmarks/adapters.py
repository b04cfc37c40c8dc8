"""The cost of LoRA adapters: one stream with an adapter, and two streams with different ones, in turns.

    python -m benchmarks.adapters MODEL.gguf [ROUNDS]

Uses a random adapter of rank 16 for all matrices in the layers. Each round measures every setup once; the
median of the rounds' ratios is printed. The figures compare the CPU time of a single thread, which other
programs do not affect.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from edgechat.engine.backends.llama_cpp import LlamaCppBackend
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.scheduling import scheduler
from edgechat.engine.types import ChatRequest, Finished, Message, Sampling
from edgechat.models.formats.gguf import read_model
from edgechat.native.params import AdapterUse
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit.adapters import CHANGED, write_adapter
from tests.kit.shapes import Shape

RANK, TOKENS = 16, 16
Adapters = tuple[AdapterUse, ...]


def random_adapter(model: Path, folder: Path) -> AdapterUse:
    """Write an adapter with small random weights for all layers."""
    header, random = read_model(model), np.random.default_rng(1)
    made = {}
    for tensor in header.tensors:
        if any(f".{name}.weight" in tensor.name for name in CHANGED) and len(tensor.shape) == 2:
            n_in, n_out = tensor.shape
            a, b = random.standard_normal((RANK, n_in)), random.standard_normal((n_out, RANK))
            made[tensor.name] = (a.astype(np.float32) / 100, b.astype(np.float32) / 100)
    return AdapterUse(str(write_adapter(folder / "random.gguf", made, Shape(arch=header.architecture))))


def seconds(engine: EngineCore, *streams: Adapters) -> float:
    """Return the total CPU time that the streams take."""
    for number, adapters in enumerate(streams):
        engine.submit(
            ChatRequest(
                id=f"{number}",
                messages=(Message("user", f"Tell me {number} things about rivers."),),
                sampling=Sampling(temperature=0),
                adapters=adapters,
                max_tokens=TOKENS,
            )
        )
    began, events = time.process_time(), []
    while not engine.is_idle:
        events += engine.step()
    assert sum(isinstance(event, Finished) for event in events) == len(streams)
    return time.process_time() - began


def main(model: Path, rounds: int) -> None:
    """Measure and print the ratios."""
    plan = prepare(str(model), PlanRequest(context=4096, draft="none", threads=1))
    backend = LlamaCppBackend(plan)
    vocabulary = backend.vocabulary
    engine = EngineCore(backend, ChatTemplate(backend.chat_template, bos=vocabulary.bos, eos=vocabulary.eos))
    with tempfile.TemporaryDirectory() as folder:
        one = (random_adapter(model, Path(folder)),)
        half = (AdapterUse(one[0].path, 0.5),)
        for streams in (((),), (one,), (one, half)):
            seconds(engine, *streams)  # load the adapters, and fill the prefix cache
        ratios: dict[str, list[float]] = {}
        for _ in range(rounds):
            plain, with_one = seconds(engine, ()), seconds(engine, one)
            ratios.setdefault("one stream with an adapter / without", []).append(with_one / plain)
            same = seconds(engine, one, one) / with_one
            ratios.setdefault("two with the same adapter / one", []).append(same)
            for turn in (1, 4, 16):
                scheduler.TURN = turn
                both = seconds(engine, one, half) / (2 * with_one)
                ratios.setdefault(f"two with different ones, turns of {turn} / two alone", []).append(both)
    for name, found in ratios.items():
        print(f"{name}: {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
    engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5)
