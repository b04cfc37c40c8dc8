"""Compares streaming through RemoteEngine with streaming through curl, in turns, one and four at once.

    python -m benchmarks.remote --server llama-server --model FILE.gguf [--rounds 8] [--tokens 128]
    python -m benchmarks.remote --url http://127.0.0.1:8080 --id MODEL [--key KEY]

The server is llama-server (from PATH, or the one given by --server), or one that is already running. Rates
count the pieces after the first, so that prefill does not matter; curl's output goes to a pipe and is only
read. The CPU time that this process takes per piece is printed as well; on a busy machine, it is the more
reliable figure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator

from edgechat.engine.remote.engine import RemoteEngine, RunningHost
from edgechat.engine.types import ChatRequest, Delta, Message, Sampling
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.discovery import models_of
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import LoadPlan
from edgechat.settings import RemoteServer

QUESTION = "Write a long story about a lighthouse keeper and her cat."
_START_SECONDS = 120.0

Stream = tuple[float, str]
"""Pieces per second, and the text."""


def rate(times: list[float]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


def _request(name: str, tokens: int) -> ChatRequest:
    messages = (Message("user", QUESTION),)
    return ChatRequest(id=name, messages=messages, sampling=Sampling(temperature=0.0), max_tokens=tokens)


async def by_engine(engine: RemoteEngine, tokens: int, name: str) -> Stream:
    times: list[float] = []
    text = ""
    async for event in engine.stream(_request(name, tokens)):
        if isinstance(event, Delta) and event.text:
            times.append(time.perf_counter())
            text += event.text
    return rate(times), text


async def by_curl(url: str, key: str | None, model: str, tokens: int) -> Stream:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0.0,
        "max_tokens": tokens,
        "stream": True,
    }
    header = ["-H", f"Authorization: Bearer {key}"] if key else []
    command = ["curl", "-sN", f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", *header]
    process = await asyncio.create_subprocess_exec(
        *command, "-d", json.dumps(body), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines: list[tuple[float, bytes]] = []
    async for line in process.stdout:
        if line.startswith(b"data: {"):
            lines.append((time.perf_counter(), line))  # noqa: PERF401  (each with its own time)
    await process.wait()
    parsed = [(at, json.loads(line[6:])["choices"]) for at, line in lines]
    pieces = [(at, found[0]["delta"].get("content")) for at, found in parsed if found]
    said = [(at, text) for at, text in pieces if text]
    return rate([at for at, _ in said]), "".join(text for _, text in said)


@contextlib.asynccontextmanager
async def served(program: str, model: str, *options: str) -> AsyncIterator[str]:
    """Run llama-server with four slots; yield its URL once it responds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", model, "--port", str(port), "--host", "127.0.0.1", "-np", "4", "-c", "8192", *options]
    process = await asyncio.create_subprocess_exec(
        program, *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + _START_SECONDS
    try:
        while not await _answers(url):
            if process.returncode is not None or time.monotonic() > end:
                raise SystemExit(f"{program} did not start.")
            await asyncio.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _answers(url: str) -> bool:
    process = await asyncio.create_subprocess_exec("curl", "-sf", f"{url}/health", stdout=-3, stderr=-3)
    return await process.wait() == 0


async def measure(url: str, key: str | None, model: str | None, rounds: int, tokens: int) -> None:
    server = RemoteServer(url=url, key=key)
    client = RemoteClient("server", server)
    kind, models = await models_of(client)
    await client.close()
    id = model or models[0].id
    remote = HostedModel(server="server", id=id, kind=kind, url=url)
    engine = RemoteEngine(
        LoadPlan(model_path="", model_name=remote.name, context=8192, remote=remote), RunningHost(server)
    )
    ours, theirs, ratios = list[float](), list[float](), list[float]()
    await by_curl(url, key, id, 8)
    await by_engine(engine, 8, "first")
    for at in range(rounds):
        turns = [by_engine(engine, tokens, str(at)), by_curl(url, key, id, tokens)]
        results = {}
        for turn in turns if at % 2 else turns[::-1]:  # alternate which one goes first
            results[turn.__name__] = await turn
        (our_rate, our_text), (their_rate, their_text) = results["by_engine"], results["by_curl"]
        assert our_text.strip() == their_text.strip(), "the texts differ"
        ours.append(our_rate)
        theirs.append(their_rate)
        ratios.append(our_rate / their_rate)
    spent, n_pieces = time.process_time(), 0
    async for _ in engine.stream(_request("spent", tokens)):
        n_pieces += 1
    spent = time.process_time() - spent
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    print(f"{kind}, {id}, {tokens} tokens, {rounds} rounds")
    print(f"  RemoteEngine {statistics.median(ours):.1f} pieces/s, curl {statistics.median(theirs):.1f}")
    whole = len(ours) / sum(1 / one for one in ours) / (len(theirs) / sum(1 / one for one in theirs))
    median, low, high = quarters[1], quarters[0], quarters[2]
    print(f"  ratio {whole:.3f} (rounds: median {median:.3f}, middle half {low:.3f} - {high:.3f})")
    print(f"  {1e6 * spent / n_pieces:.0f} us of a core for each piece")
    alone = (await by_engine(engine, tokens, "alone"))[1]
    four = await asyncio.gather(*(by_engine(engine, tokens, f"four{at}") for at in range(4)))
    peers = await asyncio.gather(*(by_curl(url, key, id, tokens) for _ in range(4)))
    our_sum, their_sum = sum(one for one, _ in four), sum(one for one, _ in peers)
    n_same = sum(text == alone for _, text in four)
    print(f"  four at once: {our_sum:.1f} pieces/s, four curls {their_sum:.1f}; {n_same} of 4 as alone")
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--server", default=shutil.which("llama-server"))
    parser.add_argument("--model", help="a GGUF file, for --server")
    parser.add_argument("--url")
    parser.add_argument("--id", help="what the server calls the model; default: its first one")
    parser.add_argument("--key")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()

    async def run() -> None:
        if options.url:
            await measure(options.url, options.key, options.id, options.rounds, options.tokens)
            return
        if not options.server or not options.model:
            raise SystemExit("Name a server that runs (--url), or llama-server and a model.")
        async with served(options.server, options.model) as url:
            await measure(url, None, options.id, options.rounds, options.tokens)

    with _home():
        asyncio.run(run())


@contextlib.contextmanager
def _home() -> Iterator[None]:
    """Keep measured speeds out of the user's own folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGECHAT_HOME"] = folder
        yield


if __name__ == "__main__":
    main()
