"""Prefill speed with a real model, compared with llama.cpp's own programs from the same build.

    python -m benchmarks.reading MODEL.gguf LLAMA_BIN [lone newcomer heard] [--rounds 3] [--sizes 2000]

lone      prompts of 400, 2,000 and 6,000 tokens (or --sizes) through `edgechat run` and `edgechat serve`,
          relative to llama-bench's rate for the same length and kind of attention, in turns
newcomer  the time to first token for a prompt of 355 tokens that arrives during three and seven streams, and
          the longest gap in those streams; the same with llama-server and eight slots
heard     how long a cancellation or a second question has to wait while a long prompt is read, at several
          depths

LLAMA_BIN is a folder that contains llama-bench and llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.prompts import prompt
from benchmarks.serving import KEY, Running
from benchmarks.streaming import THREADS
from edgechat.engine.types import ChatRequest, Delta, Message, Prefill, Sampling
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan

SIZES = (400, 2000, 6000)
NEWCOMER = 355
CONTEXT = 8192
SLOTS = 8
DEPTHS = (300, 1200, 3000)
ENDS = {"151643": -100, "151645": -100}
"""Qwen2.5's end tokens, suppressed so that streams continue until the newcomer's prompt has been read."""


def bare(folder: Path, model: Path, n_tokens: int, *, flash: bool) -> float:
    """Return llama-bench's tokens/s for a prompt."""
    words = ["-m", str(model), "-p", str(n_tokens), "-n", "0", "-t", str(THREADS), "-r", "1"]
    done = subprocess.run(
        [folder / "llama-bench", *words, "-fa", str(int(flash)), "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(msgspec.json.decode(done.stdout)[0]["avg_ts"])


def edgechat(*words: str, home: str, text: str = "") -> Any:
    """Return a command's JSON output."""
    done = subprocess.run(
        [sys.executable, "-m", "edgechat", *words, "--json", "--ctx", str(CONTEXT), "--draft", "none"],
        env={**os.environ, "EDGECHAT_HOME": home},
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return msgspec.json.decode(done.stdout)


def run(model: Path, text: str, home: str) -> tuple[int, float]:
    """Return the number of tokens in a prompt, and the rate at which `edgechat run` reads them."""
    answer = edgechat("run", str(model), "--max-tokens", "1", home=home, text=text)
    return answer["usage"]["prompt_tokens"], answer["timings"]["prompt_tps"]


async def lone(model: Path, folder: Path, rounds: int, sizes: Sequence[int]) -> None:
    """Measure prompts with nothing else running."""
    for size in sizes:
        through_run, through_serve = [], []
        with tempfile.TemporaryDirectory() as home:
            flash = edgechat("plan", str(model), home=home)["flash_attention"]
            async with Running(model, CONTEXT) as server:
                for number in range(rounds):
                    reference = bare(folder, model, size, flash=flash)
                    n_tokens, rate = run(model, prompt(size, number), home)
                    through_run.append(rate / reference)
                    began = time.perf_counter()
                    async with opened(server.port, prompt(size, 1000 + number), 1) as pieces:
                        _ = [piece async for piece in pieces]
                    through_serve.append(n_tokens / (time.perf_counter() - began) / reference)
                    print(
                        f"  {n_tokens} tokens: llama-bench {reference:.1f} tokens/s (flash {flash}), "
                        f"run {through_run[-1]:.3f}, serve {through_serve[-1]:.3f} of it",
                        flush=True,
                    )
        middle = statistics.median
        print(f"{size} tokens: run {middle(through_run):.3f}, serve {middle(through_serve):.3f}", flush=True)


@contextlib.asynccontextmanager
async def posted(port: int, path: str, body: dict[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request to a server; yield the reader for its response. Exiting disconnects."""
    data = msgspec.json.encode(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
        + data
    )
    try:
        yield reader
    finally:
        writer.close()


async def events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the events of a stream, as JSON. Raises RuntimeError if the response is an error."""
    if b" 200 " not in (first := await reader.readline()):
        raise RuntimeError((first + await reader.read()).decode())
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            yield line[6:]


@contextlib.asynccontextmanager
async def opened(port: int, text: str, tokens: int) -> AsyncIterator[AsyncIterator[float]]:
    """Ask a server; yield the times at which pieces of the answer arrive. Exiting disconnects."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0.8,
        "seed": 1,
        "stream": True,
        "logit_bias": ENDS,
    }
    async with posted(port, "/v1/chat/completions", body) as reader:
        yield (time.perf_counter() async for event in events(reader) if re.search(rb'"content":"[^"]', event))


@contextlib.asynccontextmanager
async def followed(port: int, prompts: Sequence[str], tokens: int) -> AsyncIterator[list[list[float]]]:
    """Ask all prompts at once; when all answers are well under way, yield their growing lists of times."""
    times: list[list[float]] = [[] for _ in prompts]

    async def follow(number: int) -> None:
        async with opened(port, prompts[number], tokens) as pieces:
            async for at in pieces:
                times[number].append(at)

    streams = [asyncio.ensure_future(follow(number)) for number in range(len(prompts))]
    try:
        while not all(len(one) > 12 for one in times):
            await asyncio.sleep(0.05)
            for one in streams:
                if one.done():
                    one.result()
        yield times
    finally:
        for one in streams:
            one.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


async def beside(port: int, n_streams: int, seed: int) -> tuple[float, float]:
    """Return a newcomer's time to first token beside other streams, and their longest gap, in seconds."""
    prompts = [prompt(60, 7000 + 100 * seed + number) for number in range(n_streams)]
    async with followed(port, prompts, 4000) as times:
        began = time.perf_counter()
        async with opened(port, prompt(NEWCOMER, seed), 4) as pieces:
            first = await anext(pieces)
        await asyncio.sleep(0.3)
    meanwhile = ([at for at in one if began - 0.5 <= at] for one in times)
    return first - began, max(b - a for one in meanwhile for a, b in itertools.pairwise(one))


@contextlib.asynccontextmanager
async def peer(
    folder: Path, model: Path, *more: str, slots: int = SLOTS, context: int = SLOTS * 2048
) -> AsyncIterator[int]:
    """Run llama-server; yield its port. more: additional arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "-m",
        str(model),
        "-c",
        str(context),
        "--parallel",
        str(slots),
        "-t",
        str(THREADS),
        "-fa",
        "on",
        *more,
    ]
    process = await asyncio.create_subprocess_exec(
        folder / "llama-server",
        *words,
        "--port",
        str(port),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError, RuntimeError):
                async with opened(port, "x", 2) as pieces:
                    await anext(pieces)
                break
            await asyncio.sleep(0.2)
        yield port
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def loaded(
    model: Path, folder: Path, context: int, ours: dict[str, str], theirs: dict[str, Sequence[str]]
) -> AsyncIterator[dict[str, int]]:
    """Run all the servers to compare, with one slot each; yield their ports by name.

    ours: the --draft option of each edgechat server, keyed by name. theirs: additional arguments for each
    llama-server, keyed by name.
    """
    async with contextlib.AsyncExitStack() as stack:
        ports: dict[str, int] = {}
        for name, draft in ours.items():
            server = await stack.enter_async_context(Running(model, context, draft=draft))
            ports[f"edgechat {name}"] = server.port
        for name, words in theirs.items():
            running = peer(folder, model, *words, slots=1, context=context)
            ports[f"llama-server {name}"] = await stack.enter_async_context(running)
        yield ports


async def newcomer(model: Path, folder: Path, rounds: int) -> None:
    """Measure prompts that arrive during streams, on both servers in turns; only one is loaded at a time."""
    for n_streams in (3, 7):
        ours, theirs = [], []
        for number in range(rounds):
            async with Running(model, SLOTS * 2048) as server:
                ours.append(await beside(server.port, n_streams, number))
            async with peer(folder, model) as port:
                theirs.append(await beside(port, n_streams, number))
            for name, (first, gap) in (("edgechat", ours[-1]), ("llama-server", theirs[-1])):
                print(
                    f"  beside {n_streams}, {name}: first token {first:.1f} s, longest gap {gap:.2f} s",
                    flush=True,
                )
        ratio = statistics.median(a[0] / b[0] for a, b in zip(ours, theirs, strict=True))
        print(
            f"beside {n_streams} streams: first token {ratio:.2f} times llama-server's; longest gap "
            f"{max(gap for _, gap in ours):.2f} s (llama-server {max(gap for _, gap in theirs):.2f} s)",
            flush=True,
        )


async def heard(model: Path, rounds: int) -> None:
    """Measure how long cancellations and second questions wait while a prompt is read."""
    plan = LoadPlan(model_path=str(model), model_name=model.name, context=CONTEXT, threads=THREADS)
    engine = EngineSupervisor(plan, idle_seconds=0)
    await engine.start()
    for depth in DEPTHS:
        ends = [await _cancelled(engine, depth, number) for number in range(rounds)]
        firsts = [await _asked_beside(engine, depth, 500 + number) for number in range(rounds)]
        print(
            f"at {depth} tokens: a cancel is heard after {1000 * max(ends):.0f} ms at most, "
            f"a short question has its first token after {1000 * max(firsts):.0f} ms",
            flush=True,
        )
    await engine.close()


def _request(name: str, text: str) -> ChatRequest:
    return ChatRequest(id=name, messages=(Message("user", text),), sampling=Sampling(seed=1), max_tokens=2)


async def _cancelled(engine: EngineSupervisor, depth: int, seed: int) -> float:
    """Return the seconds from cancelling a request, during a call at this depth, until it ends."""
    reading = await _reading(engine, depth, seed)
    began = time.perf_counter()
    await engine.cancel("long")
    await reading
    return time.perf_counter() - began


async def _asked_beside(engine: EngineSupervisor, depth: int, seed: int) -> float:
    """Return the seconds from asking a short question, during a call at this depth, to its first token."""
    reading = await _reading(engine, depth, seed)
    began, first = time.perf_counter(), 0.0
    async for event in engine.stream(_request("short", "Hi")):
        if isinstance(event, Delta) and not first:
            first = time.perf_counter() - began
    await engine.cancel("long")
    await reading
    return first


async def _reading(engine: EngineSupervisor, depth: int, seed: int) -> asyncio.Task[None]:
    """Start reading a long prompt; return once a call at this depth is under way."""
    reached = asyncio.Event()

    async def read() -> None:
        async for event in engine.stream(_request("long", prompt(CONTEXT - 2000, seed))):
            if isinstance(event, Prefill) and event.done >= depth:
                reached.set()

    reading = asyncio.ensure_future(read())
    arrived = asyncio.ensure_future(reached.wait())
    await asyncio.wait([reading, arrived], return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        reading.result()  # re-raises its error, if any
    await asyncio.sleep(0.7)
    return reading


def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", default=["lone", "newcomer", "heard"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    print(f"{options.model.name}, {THREADS} threads")
    if "lone" in options.parts:
        asyncio.run(lone(options.model, options.folder, options.rounds, options.sizes))
    if "newcomer" in options.parts:
        asyncio.run(newcomer(options.model, options.folder, options.rounds))
    if "heard" in options.parts:
        asyncio.run(heard(options.model, options.rounds))


if __name__ == "__main__":
    main()
