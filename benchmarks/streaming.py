"""Compares streaming through the worker with a bare llama_decode loop: same model, threads and depth.

    python -m benchmarks.streaming [--model FILE] [--rounds 40] [--depth 256] [--tokens 32]
    python -m benchmarks.streaming --backend mlx [--model FOLDER]     against mlx-lm's generate_step

Short rounds alternate between the two, so that noise affects both equally; each starts at the same depth,
with the cells before it cached. The ratio covers all rounds, and is printed with the spread over the rounds.
The bare loop takes its next token from a fixed list, without sampling or producing text. `edgechat` samples
(temperature 0.8 by default), produces text, and sends every token to another process, which writes it to
/dev/null. mlx-lm's generate_step samples in the same way, and starts computing the next token before the
current one is known.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import statistics
import time
from pathlib import Path

import edgechat.native  # noqa: F401  (first: it sets how OpenMP's threads wait, for both sides)

# isort: split
import llama_cpp.llama_cpp as lib

from benchmarks.prompts import long_task
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.native import ggml
from edgechat.planner.plan import LoadPlan
from edgechat.settings import Backend
from tests.engine.runtimes import GPU
from tests.kit import NOT_PRINTABLE, TINYLLAMA, Shape, Spec, build

THREADS = 2
LARGE = Spec(shape=TINYLLAMA, weights="4bit", n_vocab=32000)
SMALL = Spec(shape=Shape(n_layers=8, n_embd=256, n_ff=704, n_heads=4, n_kv_heads=4), n_vocab=4096)
"""MLX is not made for CPUs: on one, this model is about as fast as the large model is on a GPU."""
_TRIES = 4
"""Try up to this many times the requested rounds, since replies of a real model may be too short to count."""
MUTE = (*NOT_PRINTABLE, *range(259, 32000))
"""Tokens to suppress, so that replies are printable and tokenize to what the model generated."""


class Bare:
    """The bare minimum: llama_batch_get_one and llama_decode."""

    def __init__(self, model: Path, context: int, *, flash: bool = True) -> None:
        self._quiet = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._quiet, None)
        ggml.start()
        self.model = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, 512, 512
        params.n_threads = params.n_threads_batch = THREADS
        kinds = (lib.LLAMA_FLASH_ATTN_TYPE_DISABLED, lib.LLAMA_FLASH_ATTN_TYPE_ENABLED)
        params.flash_attn_type = kinds[flash]
        params.no_perf = True
        self.context = lib.llama_init_from_model(self.model, params)

    def run(self, depth: int, tokens: int) -> float:
        """Move to `depth`; return the tokens/s when decoding `tokens` one by one."""
        self._go_to(depth)
        began = time.perf_counter()
        for i in range(tokens):
            self._decode([5 + i % 200])
            lib.llama_get_logits(self.context)
        return tokens / (time.perf_counter() - began)

    def read(self, depth: int, tokens: int) -> float:
        """Move to `depth`; return the tokens/s when reading up to 512 tokens in one call."""
        self._go_to(depth)
        began = time.perf_counter()
        self._decode([5 + i % 200 for i in range(tokens)])
        lib.llama_get_logits(self.context)
        return tokens / (time.perf_counter() - began)

    def _go_to(self, depth: int) -> None:
        memory = lib.llama_get_memory(self.context)
        for at in range(lib.llama_memory_seq_pos_max(memory, 0) + 1, depth, 512):
            self._decode([5 + i % 200 for i in range(min(512, depth - at))])
        lib.llama_memory_seq_rm(memory, 0, depth, -1)

    def _decode(self, tokens: list[int]) -> None:
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        if lib.llama_decode(self.context, lib.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")


class GenerateStep:
    """mlx-lm's own loop."""

    def __init__(self, model: Path, temperature: float) -> None:
        import mlx.core as mx
        from mlx_lm.models.cache import make_prompt_cache
        from mlx_lm.sample_utils import make_sampler
        from mlx_lm.utils import load_model

        mx.set_default_device(mx.gpu if GPU else mx.cpu)
        self._mx = mx
        self._model, _ = load_model(model)
        self._cache = make_prompt_cache(self._model)
        same = Sampling(temperature=temperature)
        self._sampler = make_sampler(temp=temperature, top_p=same.top_p, min_p=same.min_p, top_k=same.top_k)

    def run(self, depth: int, tokens: int) -> float:
        """Move to `depth`; return the decoding tokens/s, not counting the first token."""
        from mlx_lm.generate import generate_step
        from mlx_lm.models.cache import trim_prompt_cache

        held = self._cache[0].offset
        trim_prompt_cache(self._cache, max(0, held - depth))
        prompt = self._mx.array([5 + i % 200 for i in range(max(1, depth - held))])
        steps = generate_step(
            prompt, self._model, max_tokens=tokens, prompt_cache=self._cache, sampler=self._sampler
        )
        next(steps)
        began = time.perf_counter()
        n = sum(1 for _ in steps)
        return n / (time.perf_counter() - began)


def spread(ratios: list[float]) -> str:
    """Return the median and quartiles of ratios as text."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"rounds: median {middle:.3f}, middle half {low:.3f} - {high:.3f}"


async def through_worker(
    engine: EngineSupervisor, text: str, number: int, tokens: int, temperature: float
) -> tuple[float, float, int] | None:
    """Return the decode tokens/s as timed by the worker and by this process, and the depth reached.

    Returns None if the reply was too short.
    """
    sampling = Sampling(temperature=temperature, seed=number)
    arrivals = []
    with open(os.devnull, "w") as sink:
        request = ChatRequest(
            id=str(number), messages=(Message("user", text),), sampling=sampling, max_tokens=tokens
        )
        async for event in engine.stream(request):
            if isinstance(event, Delta):
                arrivals.append((time.perf_counter(), event.tokens))
                sink.write(event.text)
            elif isinstance(event, Finished):
                finished = event
    if finished.usage.completion_tokens < tokens:
        return None
    (first, n_first), (last, n_last) = arrivals[0], arrivals[-1]
    return finished.timings.decode_tps, (n_last - n_first) / (last - first), finished.usage.prompt_tokens


async def measure(
    model: Path, real: bool, backend: Backend, rounds: int, depth: int, tokens: int, temperature: float
) -> None:
    """Alternate between the two, and print the ratios."""
    context = depth + tokens + 256
    plan = LoadPlan(
        model_path=str(model),
        model_name=model.name,
        backend=backend,
        context=context,
        threads=THREADS,
        **(GPU if backend == "mlx" else {}),
    )
    engine = EngineSupervisor(plan)
    await engine.start()
    bare = GenerateStep(model, temperature) if backend == "mlx" else Bare(model, context)
    rows: list[tuple[float, float, float]] = []
    for number in range(_TRIES * rounds):
        if len(rows) == rounds:
            break
        # For the kit's models, each letter is one token.
        text = long_task(depth, number) if real else "x" * (depth - 24)
        if found := await through_worker(engine, text, number, tokens, temperature):
            worker, seen, reached = found
            rows.append((await asyncio.to_thread(bare.run, reached, tokens), worker, seen))
    rows = rows[2:]  # the first rounds warm up the caches
    # Each rate covers the same number of tokens, so the harmonic mean is the overall rate.
    bare_rate, *rates = (statistics.harmonic_mean(column) for column in zip(*rows, strict=True))
    what = f"depth {depth}, {tokens} tokens, temperature {temperature:g}"
    print(f"{model.name}, {THREADS} threads, {what}, {os.cpu_count()} cores")
    print(f"bare {bare_rate:.1f} tokens/s over {len(rows)} rounds")
    for name, rate, column in (
        ("as the worker times it", rates[0], 1),
        ("as the front end sees it", rates[1], 2),
    ):
        rounds_spread = spread([row[column] / row[0] for row in rows])
        print(f"{name}: {rate:.1f} tokens/s, {rate / bare_rate:.3f} of bare ({rounds_spread})")
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--backend", choices=("llama.cpp", "mlx"), default="llama.cpp")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--depth", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.8)
    options = parser.parse_args()
    model = options.model
    real = model is not None
    if model is None and options.backend == "mlx":
        from tests.kit.mlx import mlx_build

        model = mlx_build(LARGE if GPU else SMALL)
    elif model is None:
        model = build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000))
    asyncio.run(
        measure(
            model, real, options.backend, options.rounds, options.depth, options.tokens, options.temperature
        )
    )


if __name__ == "__main__":
    main()
