"""`edgechat serve` under load. This process generates the load; the server and its worker are separate ones.

    python -m benchmarks.serving [one batch beside prefix latency ...] [--rounds 10]

one      a stream over HTTP against the same answer from `edgechat run`, in turns
batch    four and eight streams against a bare batched decode loop of the same size
beside   the gaps in a stream while a prompt of 1,700 tokens is read
prefix   the time to first token after a cached prefix of 1,000 tokens, and for an empty prompt
latency  time to first token and gaps with 1, 4, 8 and 16 clients that ask one question after another

The client is a bare socket: a real client, with its JSON and objects, would take CPU time from the model,
which uses both cores. Every token of the model is one character, so characters are counted as tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import msgspec
import numpy as np

from benchmarks import batching
from benchmarks.streaming import MUTE, THREADS, spread
from edgechat.planner.plan import LoadPlan
from tests.kit import TINYLLAMA, Spec, build

KEY = "benchmark"
CONTEXT = 8192
SMALL = 512
DEPTH = 200

Arrivals = list[tuple[float, int]]
"""Pairs of a time and the number of tokens received by then, starting with the time of the question and 0."""


class _Choice(msgspec.Struct):
    delta: dict[str, Any] = {}


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(_Chunk)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    port: int

    async def ask(self, messages: Sequence[tuple[str, str]], tokens: int, seed: int) -> Arrivals:
        """Stream an answer of up to `tokens` tokens."""
        body = msgspec.json.encode(
            {
                "model": "default",
                "messages": [{"role": role, "content": text} for role, text in messages],
                "max_tokens": tokens,
                "temperature": 0.8,
                "seed": seed,
                "stream": True,
            }
        )
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        _, client = await loop.create_connection(
            lambda: _Client(head.encode() + body), "127.0.0.1", self.port
        )
        return [(began, 0), *_tokens(await client.pieces)]


class _Client(asyncio.Protocol):
    """Asks one question and records what arrives and when; parsing is left until after the timing."""

    def __init__(self, question: bytes) -> None:
        self._question = question
        self._came: list[tuple[float, bytes]] = []
        self.pieces: asyncio.Future[list[tuple[float, bytes]]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._question)

    def data_received(self, data: bytes) -> None:
        self._came.append((time.perf_counter(), data))

    def connection_lost(self, error: Exception | None) -> None:
        self.pieces.set_result(self._came)


def _tokens(pieces: list[tuple[float, bytes]]) -> Arrivals:
    """Return when the tokens arrived. Raises RuntimeError if the answer is not a stream."""
    if not pieces or b" 200 " not in pieces[0][1]:
        raise RuntimeError(b"".join(data for _, data in pieces).decode())
    arrivals, count, rest = [], 0, b""
    for at, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        events = [_decoder.decode(line[6:]) for line in lines if line.startswith(b"data: {")]
        text = sum(len(one.delta.get("content") or "") for event in events for one in event.choices)
        if text:
            count += text
            arrivals.append((at, count))
    return arrivals


class Running:
    """The server's process; `async with` waits until it is ready."""

    def __init__(self, model: Path, context: int = CONTEXT, *, draft: str = "none") -> None:
        self._home = tempfile.TemporaryDirectory(prefix="edgechat-serving-")
        words = [
            "serve",
            str(model),
            "--port",
            "0",
            "--api-key",
            KEY,
            "--ctx",
            str(context),
            "--draft",
            draft,
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "edgechat", *words],
            env={**os.environ, "EDGECHAT_HOME": self._home.name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    async def __aenter__(self) -> Server:
        assert self._process.stdout is not None
        told = ""
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", told)):
            line = await asyncio.to_thread(self._process.stdout.readline)
            if not line:
                raise RuntimeError(f"the server ended:\n{told}")
            told += line
        server = Server(int(found[1]))
        await server.ask([("user", "x")], 4, 1)  # loads the model
        return server

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()
        self._home.cleanup()


class Run:
    """`edgechat run`, as seen by a program that reads its output."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._home = tempfile.TemporaryDirectory(prefix="edgechat-run-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._home.cleanup()

    async def ask(self, text: str, tokens: int, seed: int) -> Arrivals:
        """Return when the answer's characters arrived."""
        words = ["run", str(self._model), text, "--max-tokens", str(tokens), "--seed", str(seed)]
        words += ["--ctx", str(SMALL), "--draft", "none", "--temperature", "0.8"]
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edgechat", *words),
            env={**os.environ, "EDGECHAT_HOME": self._home.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        arrivals, count = [(began, 0)], 0
        while piece := await process.stdout.read(4096):
            count += len(piece.decode().rstrip("\n"))
            arrivals.append((time.perf_counter(), count))
        await process.wait()
        return arrivals


def rate(arrivals: Arrivals, until: int) -> float:
    """Return the tokens/s between the first token and token number `until`."""
    inside = [one for one in arrivals[1:] if one[1] <= until]
    (first, n_first), (last, n_last) = inside[0], inside[-1]
    return (n_last - n_first) / (last - first)


def gaps(arrivals: Arrivals) -> list[float]:
    """Return the seconds between tokens."""
    return [after[0] - before[0] for before, after in itertools.pairwise(arrivals[1:])]


def first_token(arrivals: Arrivals) -> float:
    """Return the seconds from the question to the first token of the answer."""
    return arrivals[1][0] - arrivals[0][0]


def question(name: str, length: int = DEPTH) -> str:
    """Return a new question of about `length` tokens, including the template's."""
    return (f"{name} " + "".join(chr(65 + at % 50) for at in range(length)))[: max(length - 24, 1)]


async def together(server: Server, number: int, n: int, tokens: int) -> list[Arrivals]:
    """Ask n questions at once."""
    asked = [[("user", question(f"{seq} of them"))] for seq in range(n)]
    return await asyncio.gather(*(server.ask(one, tokens, 9 * number + seq) for seq, one in enumerate(asked)))


async def one(model: Path, rounds: int) -> None:
    """Compare a stream over HTTP with `edgechat run`.

    The context is small, so that both attend to the same number of cells: cells left over from earlier
    answers cost just as much.
    """
    tokens = 64
    rates = []
    with Run(model) as run:
        async with Running(model, SMALL) as server:
            for number in range(rounds):
                asked = question("the same", 300)
                alone = rate(await run.ask(asked, tokens, number), tokens)
                served = rate(await server.ask([("user", asked)], tokens, number), tokens)
                rates.append((alone, served))
    alone, served = (statistics.harmonic_mean(column) for column in zip(*rates, strict=True))
    print(
        f"one stream: edgechat run {alone:.1f} tokens/s, over HTTP {served:.1f}: {served / alone:.3f} of it "
        f"({spread([ours / theirs for theirs, ours in rates])})"
    )


async def batch(model: Path, rounds: int) -> None:
    """Compare four and eight streams with a bare batched loop."""
    tokens = 64
    for n in (4, 8):
        plan = LoadPlan(
            model_path=str(model),
            model_name=model.name,
            context=n * (DEPTH + 2 * tokens) + 512,
            threads=THREADS,
            n_seq_max=n,
            n_outputs_max=n,
        )
        bare, rates, between = batching.Bare(plan, n, DEPTH), [], []
        async with Running(model, plan.context) as server:
            for number in range(rounds + 2):
                alone = bare.run(tokens)
                arrivals = await together(server, number, n, tokens)
                if number >= 2:  # the first rounds fill the caches
                    rates.append((alone, batching.rate([one[1:] for one in arrivals])[0]))
                    between += [gap for one in arrivals for gap in gaps(one)]
        bare.close()
        alone, ours = (statistics.harmonic_mean(column) for column in zip(*rates, strict=True))
        print(
            f"{n} streams: bare {alone:.1f} tokens/s, over HTTP {ours:.1f}: {ours / alone:.3f} of bare "
            f"({spread([ours / theirs for theirs, ours in rates])})"
        )


async def beside(model: Path, rounds: int) -> None:
    """Measure the gaps in a stream while a long prompt is read."""
    longest = []
    async with Running(model) as server:
        for number in range(min(rounds, 4)):
            stream = asyncio.ensure_future(server.ask([("user", question(f"s {number}"))], 300, 1))
            await asyncio.sleep(2.0)
            long = await server.ask([("user", question(f"long {number}", 1700))], 4, 1)
            arrivals = await stream
            began, ended = long[0][0], long[1][0]
            inside = [at for at, _ in arrivals[1:] if began <= at <= ended]
            found = [b - a for a, b in itertools.pairwise(inside)]
            longest.append(max(found))
            print(
                f"a prompt of 1,700 tokens beside a stream: its first token after {ended - began:.1f} s; the "
                f"stream's gaps median {ms(statistics.median(found))} ms, longest {ms(max(found))}"
            )


async def prefix(model: Path, rounds: int) -> None:
    """Measure the time to first token after a cached prefix."""
    system = question("You know all of this:", 1024)
    known, empty = [], []
    async with Running(model) as server:
        await server.ask([("system", system), ("user", "warm")], 4, 1)
        for number in range(2 * rounds):
            asked = ("user", f"q{number:03d}")
            empty.append(first_token(await server.ask([asked], 4, 1)))
            known.append(first_token(await server.ask([("system", system), asked], 4, 1)))
    ratios = [ours / theirs for theirs, ours in zip(empty, known, strict=True)]
    cold, warm = statistics.median(empty), statistics.median(known)
    print(
        f"first token: empty prompt {ms(cold)} ms, behind 1,000 known tokens {ms(warm)}: "
        f"{warm / cold:.2f} of it ({spread(ratios)})"
    )


async def latency(model: Path, rounds: int) -> None:
    """Measure the time to first token and the gaps for different numbers of clients."""
    tokens, seconds = 32, 4.0 * rounds
    print(f"prompts of 64 tokens, {tokens} tokens an answer; milliseconds, p50 / p95 / p99")
    print("| clients | answers | tokens/s | first token | gap between tokens |\n|---|---|---|---|---|")
    async with Running(model) as server:
        for n in (1, 4, 8, 16):
            answers: list[Arrivals] = []
            began = time.perf_counter()

            async def client(number: int, n: int = n, began: float = began) -> None:
                asked = 0
                while time.perf_counter() - began < seconds:
                    text = question(f"{n} {number} {asked} ", 64)
                    answers.append(await server.ask([("user", text)], tokens, 1))  # noqa: B023
                    asked += 1

            await asyncio.gather(*(client(number) for number in range(n)))
            took = time.perf_counter() - began
            count = sum(one[-1][1] for one in answers)
            firsts = [first_token(one) for one in answers]
            between = [gap for one in answers for gap in gaps(one)]
            print(f"| {n} | {len(answers)} | {count / took:.1f} | {told(firsts)} | {told(between)} |")


def told(seconds: list[float]) -> str:
    """Return the quantiles in milliseconds, as text."""
    return " / ".join(ms(float(one)) for one in np.quantile(seconds, (0.5, 0.95, 0.99)))


def ms(seconds: float) -> str:
    """Return seconds as milliseconds, as text."""
    return f"{1000 * seconds:.0f}"


FIGURES: dict[str, Callable[[Path, int], Coroutine[Any, Any, None]]] = {
    "one": one,
    "batch": batch,
    "beside": beside,
    "prefix": prefix,
    "latency": latency,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], default=list(FIGURES))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    model = build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000, mute=MUTE))
    for name in options.figures:
        asyncio.run(FIGURES[name](model, options.rounds))


if __name__ == "__main__":
    main()
