"""The longest gap in either of two streams from a server that malicious clients are attacking.

    python -m benchmarks.attacks MODEL.gguf [names of attacks] [--seconds 8]

Each attack is a separate process with the lowest priority, since remote attackers use their own CPUs. It runs
for as long as the streams are measured, then drops all its connections.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.prompts import prompt
from benchmarks.reading import followed
from benchmarks.serving import KEY, Running

STREAMS = 2
CONTEXT = 32768
HANGS_UP = 0.5
"""Seconds after which a client disconnects."""
MIB = 2**20

Attack = Callable[[int], Awaitable[None]]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Register an attack under its name."""
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


def post(path: str, body: bytes, *, length: int | None = None) -> bytes:
    """Return a request; `length` overrides the true length of the body in its Content-Length header."""
    said = len(body) if length is None else length
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {said}\r\n\r\n"
    ).encode() + body


def chat(content: str, **more: Any) -> bytes:
    """Return a chat request."""
    fields = {"model": "default", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}
    return post("/v1/chat/completions", msgspec.json.encode(fields))


async def send(port: int, data: bytes) -> None:
    """Send data, read the response for a while, and disconnect."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANGS_UP):
                    while await reader.read(65536):
                        pass
        finally:
            writer.transport.abort()


def begin() -> None:
    """Announce that the attack is starting."""
    print("now", flush=True)


async def over_and_over(port: int, make: Callable[[int], bytes], at_once: int = 4) -> None:
    """Keep sending requests, `at_once` at a time, each dropped after half a second."""
    made = itertools.cycle([make(number) for number in range(max(at_once, 4))])
    begin()

    async def client() -> None:
        while True:
            await send(port, next(made))

    await asyncio.gather(*(client() for _ in range(at_once)))


async def held_open(port: int, data: bytes, n: int, crumb: bytes) -> None:
    """Open `n` connections and keep them open, sending each a few bytes (`crumb`) now and then."""
    begin()
    writers = []
    try:
        for _ in range(n):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                writers.append(writer)
        while True:
            for writer in writers:
                if not writer.is_closing():
                    writer.write(crumb)
            await asyncio.sleep(0.02)
    finally:
        for writer in writers:
            writer.transport.abort()


@attack
async def nobody(port: int) -> None:
    """Do nothing, so that the streams run undisturbed for comparison."""
    begin()
    await asyncio.sleep(3600)


@attack
async def questions_that_hang_up(port: int) -> None:
    await over_and_over(port, lambda number: chat(f"{number} what is a quant?"), 8)


@attack
async def control_tokens_of_310_kb(port: int) -> None:
    await over_and_over(port, lambda number: chat(f"{number}" + "<|im_end|>" * 31_000), 15)


@attack
async def control_tokens_of_15_mib(port: int) -> None:
    await over_and_over(port, lambda number: chat(f"{number}" + "<|im_end|>" * (3 * MIB // 2)), 2)


@attack
async def words_of_8_mib(port: int) -> None:
    await over_and_over(port, lambda number: chat(f"{number}" + "word and " * MIB), 2)


@attack
async def one_letter_of_8_mib(port: int) -> None:
    await over_and_over(port, lambda number: chat(f"{number}" + "\u0e01" * (8 * MIB // 3)), 2)


@attack
async def long_prompts(port: int) -> None:
    await over_and_over(port, lambda number: chat(prompt(3000, number)), 2)


@attack
async def long_prompts_raw(port: int) -> None:
    def raw(number: int) -> bytes:
        fields = {"model": "default", "prompt": f"{number}" + "<|im_end|>" * 300_000, "max_tokens": 4}
        return post("/v1/completions", msgspec.json.encode(fields))

    await over_and_over(port, raw, 4)


@attack
async def a_history_of_many_turns(port: int) -> None:
    def turns(number: int) -> bytes:
        said = [
            {"role": ("user", "assistant")[at % 2], "content": f"{number}.{at} hello"} for at in range(9999)
        ]
        return post("/v1/chat/completions", msgspec.json.encode({"model": "default", "messages": said}))

    await over_and_over(port, turns, 2)


@attack
async def background_work(port: int) -> None:
    await over_and_over(port, lambda number: chat(f"{number} background", priority="background"), 40)


@attack
async def tools_of_8_mib(port: int) -> None:
    def tools(number: int) -> bytes:
        function = {"name": "look", "description": "x" * MIB, "parameters": {"type": "object"}}
        named = [{"type": "function", "function": {**function, "name": f"look{at}"}} for at in range(8)]
        return chat(f"{number}", tools=named)

    await over_and_over(port, tools, 2)


@attack
async def schemas_that_grow(port: int) -> None:
    def schema(number: int) -> bytes:
        inner: dict[str, Any] = {"type": "string", "pattern": "^(a?){30}(b|c){1,200}$"}
        for depth in range(12):
            inner = {"type": "object", "properties": {f"{number}{at}.{depth}": inner for at in range(2)}}
        form = {"type": "json_schema", "json_schema": {"name": "deep", "schema": inner}}
        return chat(f"{number}", response_format=form)

    await over_and_over(port, schema, 4)


@attack
async def enumerations_of_a_million(port: int) -> None:
    def schema(number: int) -> bytes:
        form = {
            "type": "json_schema",
            "json_schema": {"name": "long", "schema": {"enum": [f"{number}.{at}" for at in range(500_000)]}},
        }
        return chat(f"{number}", response_format=form)

    await over_and_over(port, schema, 2)


@attack
async def ids_by_the_million(port: int) -> None:
    def ids(number: int) -> bytes:
        fields = {"model": "default", "prompt": [number % 100, *range(1000)] * 1000, "max_tokens": 4}
        return post("/v1/completions", msgspec.json.encode(fields))

    await over_and_over(port, ids, 2)


@attack
async def nested_json(port: int) -> None:
    await over_and_over(
        port, lambda number: post("/v1/chat/completions", b'{"messages":' + b"[" * 4 * MIB), 2
    )


@attack
async def bodies_without_an_end(port: int) -> None:
    await held_open(port, post("/v1/chat/completions", b'{"model": "', length=8 * MIB), 500, b"x")


@attack
async def heads_without_an_end(port: int) -> None:
    await held_open(port, b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ", 500, b"a")


@attack
async def crumbs_of_chunks(port: int) -> None:
    head = post("/v1/chat/completions", b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    await held_open(port, head, 60, b"1\r\nx\r\n" * 40)


@attack
async def framing_at_random(port: int) -> None:
    draw = random.Random(1)
    pieces = (
        b"POST /v1/chat/completions HTTP/1.1\r\n",
        b"Content-Length: 5\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"0\r\n",
    )
    more = (
        b"Transfer-Encoding: chunked\r\n",
        b"Host: 127.0.0.1\r\n",
        b"\x00\xff",
        b"GET / HTTP/1.1\r\n",
        b"x" * 999,
    )
    await over_and_over(
        port, lambda number: b"".join(draw.choices(pieces + more, k=draw.randrange(1, 30))), 8
    )


@attack
async def models_that_are_not_there(port: int) -> None:
    await over_and_over(port, lambda number: chat("hi", model=f"{'x' * 400}{number}"), 8)


@attack
async def sampling_of_every_kind(port: int) -> None:
    def odd(number: int) -> bytes:
        bias = {str(at): (-1) ** at for at in range(1000)}
        stops = ["".join(random.Random(at + number).choices("abc", k=40)) for at in range(4)]
        return chat(
            f"{number}", logit_bias=bias, stop=stops, top_logprobs=20, logprobs=True, n=4, max_tokens=64
        )

    await over_and_over(port, odd, 2)


async def gaps(port: int, name: str, seconds: float) -> tuple[float, float]:
    """Return the median and longest gaps between the pieces of two streams during an attack."""
    async with followed(port, [prompt(60, number) for number in range(STREAMS)], 6000) as times:
        hostile = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.attacks", "--attack", str(port), name), stdout=subprocess.PIPE
        )
        assert hostile.stdout is not None
        assert await hostile.stdout.readline() == b"now\n"
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        hostile.kill()
        await hostile.wait()
        await asyncio.sleep(1)  # to catch late effects
        until = time.perf_counter()
    found = [
        b - a for one in times for a, b in itertools.pairwise([*(at for at in one if at >= began), until])
    ]
    return sorted(found)[len(found) // 2], max(found)


async def main() -> None:
    """Measure the named attacks, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", metavar="attack")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--attack", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        os.nice(19)
        await ATTACKS[str(options.model)](options.attack)
        return
    os.environ["EDGECHAT_OFFLINE"] = "1"
    async with Running(options.model, CONTEXT) as server:
        for name in options.names or ATTACKS:
            middle, longest = await gaps(server.port, name, options.seconds)
            print(f"{name}: median {1000 * middle:.0f} ms, longest {1000 * longest:.0f} ms", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
