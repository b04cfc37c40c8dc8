"""What only a GPU with its own memory can show: the memory of whole and split loads, and their speed.

    python -m benchmarks.gpu memory [--free 3]     planned against allocated, and against the driver's count
    python -m benchmarks.gpu decode [--rounds 8]   a stream against a bare loop, and several streams at once
    python -m benchmarks.gpu drafts [--rounds 6]   plain against drafts, for pairs of varying agreement
    python -m benchmarks.gpu split  [--rounds 3]   predicted against measured speed, by layers on the GPU

Everything is loaded as a user's model would be: planned for this machine as it is now, and in a worker.
--free: another program takes the GPU's memory, leaving this many GiB free, so that models of 5 GB are split.
The models have the shape of Llama 3.1 8B, in Q4_K_M, with random weights.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml

from benchmarks import batching
from benchmarks.streaming import Bare
from edgechat.engine.types import ChatRequest, Finished, Message, ModelInfo, Sampling
from edgechat.engine.worker.load_report import differences
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.native import ggml
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from tests.kit import NOT_PRINTABLE, Q4_K_M, Shape, Spec, build, tiny

MIB, GIB = 2**20, 2**30
LLAMA_8B = Shape(
    n_layers=32,
    n_embd=4096,
    n_ff=14336,
    n_heads=32,
    n_kv_heads=8,
    context_length=131072,
    rope_base=500000.0,
)
N_VOCAB = 128256
MUTE = (*NOT_PRINTABLE, *range(259, N_VOCAB))
_BLOCKER = "import sys; from benchmarks import gpu; gpu.take(int(sys.argv[1])); print(flush=True); input()"


def eight_billion(eps: float = 1.0, n_layers: int = 32, seed: int = 1) -> Path:
    """Return the path of a model with that shape; all layers but the first are scaled by eps."""
    shape = LLAMA_8B.sized(n_layers=n_layers)
    damped = dict.fromkeys(range(1, n_layers), eps) if eps != 1 else {}
    common: dict[str, Any] = {
        "weights": "Q4_K",
        "types": Q4_K_M,
        "n_vocab": N_VOCAB,
        "mute": MUTE,
        "logit_scale": 6.0,
    }
    name = f"8b-{n_layers}-{eps:g}-{seed}"
    return build(Spec(shape=shape, seed=seed, damped=damped, name=name, **common))


def used() -> int:
    """Return how many bytes of the first GPU's memory the driver reports as used; 0 without a GPU."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except pynvml.NVMLError:
        return 0


def take(free_bytes: int) -> None:
    """Allocate all but `free_bytes` of the first GPU's free memory in this process."""
    ggml.start()
    device = ggml.call("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int(1))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    pointers = (
        ctypes.c_void_p(device),
        ctypes.c_void_p(ctypes.addressof(free)),
        ctypes.c_void_p(ctypes.addressof(total)),
    )
    ggml.call("ggml_backend_dev_memory", None, *pointers)
    kind = ggml.ask("ggml_backend_dev_buffer_type", ctypes.c_void_p, device)
    size = ctypes.c_size_t(free.value - free_bytes)
    if not ggml.call("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, ctypes.c_void_p(kind), size):
        raise SystemExit(f"{size.value} bytes could not be allocated")


@contextlib.contextmanager
def occupied(free: float | None) -> Iterator[None]:
    """Have another program occupy the GPU's memory, leaving `free` GiB."""
    if free is None:
        yield
        return
    words = [sys.executable, "-c", _BLOCKER, str(int(free * GIB))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.kill()


def said(n_tokens: int, seed: int) -> tuple[Message, ...]:
    """Return a prompt of that many tokens; for the kit's models, each letter is one token."""
    return (Message("user", "".join(random.Random(seed).choices("xyz", k=n_tokens))),)


async def answer(
    engine: EngineSupervisor, seed: int, *, prompt: int = 200, tokens: int = 128, temperature: float = 0.8
) -> Finished:
    """Ask for an answer; return its Finished event."""
    request = ChatRequest(
        id=str(time.perf_counter_ns()),
        messages=said(prompt, seed),
        sampling=Sampling(temperature=temperature, seed=seed),
        max_tokens=tokens,
    )
    ends = [event async for event in engine.stream(request) if isinstance(event, Finished)]
    return ends[0]


@contextlib.asynccontextmanager
async def loaded(plan: LoadPlan) -> AsyncIterator[tuple[EngineSupervisor, ModelInfo]]:
    """Load a model as planned; unload it on exit."""
    engine = EngineSupervisor(plan, idle_seconds=0)
    try:
        yield engine, await engine.start()
    finally:
        await engine.close()


# Memory.


async def memory(path: Path, request: PlanRequest, what: str) -> None:
    """Load, read a long prompt, and print planned and actual memory."""
    before = used()
    plan = prepare(str(path), request)
    largest = before
    async with loaded(plan) as (engine, model):
        largest = max(largest, used())
        prompt = min(1500, plan.context - 200)
        await answer(engine, 1, prompt=prompt, tokens=64)
        largest = max(largest, used())
        wrong = differences(plan.buffers, model.buffers)
        real = {buffer.name: buffer.total - buffer.weights for buffer in model.buffers}
        most = max((abs(one.total - one.weights - real.get(one.name, 0)) for one in plan.buffers), default=0)
        planned = {one.name: one for one in plan.memory}
        where = f"{sum(plan.split)} of {plan.n_layers + 1} layers on {plan.devices or 'no GPU'}"
        print(f"{path.stem} {what}: context {plan.context}, {where}")
        print(f"  cache and compute off by at most {most / MIB:.1f} MiB; beyond tolerance: {wrong or 'none'}")
        for name, one in planned.items():
            print(f"  {name}: {one.total_bytes / MIB:.0f} MiB planned of {one.budget_bytes / MIB:.0f}")
        taken = sum(planned[name].total_bytes for name in plan.devices if name in planned)
        counted = largest - before
        print(f"  the driver counts {counted / MIB:.0f} MiB, {(counted - taken) / MIB:+.0f}", flush=True)


async def all_memory(free: float | None) -> None:
    small, large = tiny(), eight_billion()
    head = _headed()
    with occupied(free):
        await memory(small, PlanRequest(draft="none"), "tiny")
        await memory(large, PlanRequest(context=8192, draft="none"), "plain")
        await memory(large, PlanRequest(context=32768, draft="none", cache_type="q8_0"), "q8_0 cache")
        await memory(
            large, PlanRequest(context=8192, draft=str(eight_billion(n_layers=1))), "with a draft model"
        )
        await memory(tiny("windowed"), PlanRequest(context=8192, draft="none"), "windowed")
        await memory(tiny("moe"), PlanRequest(context=8192, draft="none"), "experts")
        await memory(head, PlanRequest(context=8192, draft="none"), "hybrid")
        await memory(head, PlanRequest(context=8192, draft="mtp"), "hybrid with its head")


def _headed(eps: float = 0.05) -> Path:
    from benchmarks.wide_heads import wide
    from tests.kit import MODELS_DIR

    MODELS_DIR.mkdir(exist_ok=True)
    return wide("qwen35", MODELS_DIR, eps=eps)


# Speed.


async def decode(rounds: int) -> None:
    """Compare a stream with a bare loop, and measure several streams at once."""
    path = eight_billion()
    plan = prepare(str(path), PlanRequest(context=8192, draft="none"))
    bare = Bare(path, 8192)
    async with loaded(plan) as (engine, _):
        rates, ratios = [], []
        for number in range(rounds + 2):
            theirs = await asyncio.to_thread(bare.run, 224, 128)
            ours = (await answer(engine, number)).timings.decode_tps
            if number > 1:
                rates.append((theirs, ours))
                ratios.append(ours / theirs)
        bare_rate, rate = (statistics.median(column) for column in zip(*rates, strict=True))
        spread = ", ".join(f"{one:.3f}" for one in sorted(ratios))
        middle = statistics.median(ratios)
        print(f"bare loop {bare_rate:.1f} tokens/s, edgechat {rate:.1f}: {middle:.3f} ({spread})")
        for n in (1, 2, 4, 8):
            began = time.perf_counter()
            ends = await asyncio.gather(*(answer(engine, 100 * n + i, tokens=200) for i in range(n)))
            seconds = time.perf_counter() - began
            total = sum(end.usage.completion_tokens for end in ends)
            each = statistics.median(end.timings.decode_tps for end in ends)
            batched = await asyncio.to_thread(_batched, plan, n)
            print(
                f"{n} streams: {total / seconds:.1f} tokens/s with their prompts, {each:.1f} each; "
                f"a bare batched loop {batched:.1f}, {batched / n:.1f} each",
                flush=True,
            )
        end = await answer(engine, 7, prompt=6000, tokens=16)
        print(
            f"prompt of {end.usage.prompt_tokens} tokens: {end.timings.prompt_tps:.0f} tokens/s, "
            f"{plan.predicted.prompt_tps if plan.predicted else 0:.0f} predicted before the first load",
            flush=True,
        )


def _batched(plan: LoadPlan, n: int) -> float:
    bare = batching.Bare(plan, n, 224)
    try:
        bare.run(16)
        return bare.run(96)
    finally:
        bare.close()


async def drafts(rounds: int) -> None:
    """Compare plain decoding with drafts from a draft model or from the model's own layers, in turns."""
    draft, useless = eight_billion(n_layers=1), eight_billion(n_layers=1, seed=7)
    for eps, small in ((0.0, draft), (0.05, draft), (0.15, draft), (0.05, useless)):
        what = "a useless draft" if small is useless else f"eps {eps:g}"
        await _compare(eight_billion(eps=eps), str(small), what, rounds)
    for eps in (0.05, 1.0):
        await _compare(_headed(eps), "mtp", f"its own layers, eps {eps:g}", rounds)


async def _compare(target: Path, draft: str, what: str, rounds: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        plans = [prepare(str(target), PlanRequest(context=4096, draft=one)) for one in ("none", draft)]
        engines = [(await stack.enter_async_context(loaded(plan)))[0] for plan in plans]
        for temperature in (0.0, 0.8):
            await _in_turns(engines, f"{what}, temperature {temperature:g}", temperature, rounds)


async def _in_turns(engines: Sequence[EngineSupervisor], what: str, temperature: float, rounds: int) -> None:
    rates: list[list[float]] = []
    drafted = accepted = 0
    for number in range(rounds + 2):
        ends = [await answer(one, number % 3, tokens=192, temperature=temperature) for one in engines]
        if number < 2:  # the first rounds are only for learning
            continue
        rates.append([end.timings.decode_tps for end in ends])
        if stats := ends[1].speculation:
            drafted, accepted = drafted + stats.drafted_tokens, accepted + stats.accepted_tokens
    plain, both = (statistics.harmonic_mean(column) for column in zip(*rates, strict=True))
    share = f"{accepted / drafted:.0%} of {drafted} accepted" if drafted else "nothing drafted"
    print(f"{what}: plain {plain:.1f}, drafts {both:.1f}: {both / plain:.3f}; {share}", flush=True)


async def split(rounds: int) -> None:
    """Print predicted and measured speeds while another program leaves less and less GPU memory free."""
    path = eight_billion()
    for free in (7.0, 5.0, 4.0, 3.0, 2.0, 1.0):
        with occupied(free):
            for number in range(rounds):
                plan = prepare(str(path), PlanRequest(context=4096, draft="none"))
                async with loaded(plan) as (engine, _):
                    ends = [await answer(engine, 10 * number + i, prompt=1000, tokens=48) for i in range(3)]
                rate = statistics.median(end.timings.decode_tps for end in ends)
                prefill = statistics.median(end.timings.prompt_tps for end in ends)
                assert plan.predicted is not None
                print(
                    f"{free:g} GiB free, {sum(plan.split)} layers on the GPU: "
                    f"decode {plan.predicted.decode_tps:.1f} predicted, {rate:.1f} measured; "
                    f"prompt {plan.predicted.prompt_tps:.0f}, {prefill:.0f}",
                    flush=True,
                )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "decode", "drafts", "split"))
    parser.add_argument("--free", type=float)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args(words)
    match options.what:
        case "memory":
            asyncio.run(all_memory(options.free))
        case "decode":
            asyncio.run(decode(options.rounds))
        case "drafts":
            asyncio.run(drafts(options.rounds))
        case _:
            asyncio.run(split(options.rounds))


if __name__ == "__main__":
    main()
