"""What matters to agents: prompts read only once, correct calls and JSON, a first byte without delay.

    python -m benchmarks.agents MODEL.gguf [prefix tasks first] [--llama LLAMA_BIN]

prefix  replays sessions of Codex and Claude Code (tests/server/agents): how many of the tokens that the
        second prompt (and the third, after a server restart) shares with the previous one are cached
tasks   20 function calls and 20 texts turned into JSON, at temperature 0; also with llama-server --jinja
first   the time from the engine's first token to the first byte of an answer's text

LLAMA_BIN is a folder that contains llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.agent_tasks import FUNCTIONS, TASKS, TEXTS, Text, schema_of
from benchmarks.reading import peer

KEY = "ek-for-the-benchmark"
CONTEXT = 32_768
RECORDED = Path(__file__).parents[1] / "tests" / "server" / "agents" / "recorded"
_SERVING = re.compile(r"Serving .* at (http://\S+)/v1;")


@contextlib.contextmanager
def edgechat(model: Path, home: str, context: int = CONTEXT) -> Iterator[httpx2.Client]:
    """Run a server; yield a client once the model is loaded."""
    words = ["serve", str(model), "--port", "0", "--ctx", str(context), "--draft", "none"]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgechat", *words],
        env={**os.environ, "EDGECHAT_HOME": home, "EDGECHAT_API_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = next(found[1] for line in process.stdout if (found := _SERVING.match(line)))
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx2.Client(base_url=url, headers=headers, timeout=1200, trust_env=False) as client:
            while client.get("/health").json()["status"] != "ready":
                time.sleep(0.1)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


# Prompts that are read only once.


def requests_of(agent: str) -> list[dict[str, Any]]:
    """Return the requests in an agent's recording that offer tools."""
    session = json.loads(gzip.decompress((RECORDED / f"{agent}.json.gz").read_bytes()))
    return [one for one in session["requests"] if one["body"] and one["body"].get("tools")]


def usage(client: httpx2.Client, request: dict[str, Any]) -> tuple[int, int, float]:
    """Send a request; return its number of prompt tokens, how many were cached, and the time in seconds."""
    body = request["body"] | {"model": "default", "stream": False}
    body |= {"max_output_tokens": 16} if request["path"] == "/v1/responses" else {"max_tokens": 16}
    began = time.perf_counter()
    answer = client.post(request["path"], json=body, headers=request["headers"])
    seconds = time.perf_counter() - began
    told = answer.raise_for_status().json()["usage"]
    if "input_tokens_details" in told:
        return told["input_tokens"], told["input_tokens_details"]["cached_tokens"], seconds
    cached = told["cache_read_input_tokens"]
    return told["input_tokens"] + cached + told["cache_creation_input_tokens"], cached, seconds


def prefix(model: Path, _: Path | None) -> None:
    """Replay the sessions."""
    for agent in ("codex", "claude"):
        first, second, third = requests_of(agent)
        with tempfile.TemporaryDirectory() as home:
            with edgechat(model, home) as client:
                cold, _cached, seconds = usage(client, first)
                print(f"{agent}: turn 1, {cold:,} tokens in {seconds:.1f} s", flush=True)
                warm, cached, seconds = usage(client, second)
                share = cached / cold
                print(
                    f"{agent}: turn 2, {share:.1%} of {cold:,} common tokens cached, {seconds:.1f} s",
                    flush=True,
                )
            with edgechat(model, home) as client:
                _, cached, seconds = usage(client, third)
                share = cached / warm
                print(f"{agent}: after a restart {share:.1%} of {warm:,} cached, {seconds:.1f} s", flush=True)


# Tasks.


def tasks(model: Path, folder: Path | None) -> None:
    """Give both servers the same tasks."""
    with tempfile.TemporaryDirectory() as home, edgechat(model, home, 8192) as client:
        told("edgechat", client)
    if folder is not None:
        asyncio.run(_beside(model, folder))


async def _beside(model: Path, folder: Path) -> None:
    async with peer(folder, model, "--jinja", slots=1, context=8192) as port:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=600, trust_env=False) as client:
            await asyncio.to_thread(told, "llama-server", client)


def told(name: str, client: httpx2.Client) -> None:
    """Print how many tasks a server gets right and which ones it gets wrong."""
    for kind, right in (
        ("calls", [calls(client, *task) for task in TASKS]),
        ("forms", [fills(client, text) for text in TEXTS]),
    ):
        wrong = [number for number, good in enumerate(right) if not good]
        print(f"{name}: {kind} {sum(right)} of {len(right)} right; wrong: {wrong}", flush=True)


def calls(client: httpx2.Client, question: str, name: str, arguments: dict[str, Any]) -> bool:
    """Return True if the answer to a question is exactly the expected call."""
    body = {"messages": [{"role": "user", "content": question}], "tools": FUNCTIONS}
    message = asked(client, body)
    made = message.get("tool_calls") or []
    if [call["function"]["name"] for call in made] != [name]:
        return False
    try:
        return same(json.loads(made[0]["function"]["arguments"]), arguments)
    except ValueError:
        return False


def fills(client: httpx2.Client, text: Text) -> bool:
    """Return True if a text is turned into the expected JSON."""
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema_of(text), "strict": True}}
    question = f"Extract the data of this text as JSON.\n\n{text.text}"
    message = asked(client, {"messages": [{"role": "user", "content": question}], "response_format": form})
    try:
        return same(json.loads(message["content"]), text.data)
    except ValueError:
        return False


def asked(client: httpx2.Client, body: dict[str, Any]) -> dict[str, Any]:
    """Return the message in the response to a request."""
    answer = client.post("/v1/chat/completions", json={"temperature": 0, "max_tokens": 256, **body})
    return answer.raise_for_status().json()["choices"][0]["message"]


def same(left: Any, right: Any) -> bool:
    """Compare as a person would: case and spaces do not matter, and 5 equals 5.0."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, str) and isinstance(right, str):
        return left.strip(" .").casefold() == right.casefold()
    return (type(left) is not bool and type(right) is not bool and left == right) or left is right


# First bytes.


def first(model: Path, _: Path | None, rounds: int = 60) -> None:
    """Time the first byte of an answer's text, and ask the server when the engine had its first token."""
    beyond = []
    with tempfile.TemporaryDirectory() as home, edgechat(model, home, 4096) as client:
        for number in range(rounds):
            body = {"messages": [{"role": "user", "content": f"Say hello, {number}."}], "max_tokens": 4}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            began = time.perf_counter()
            seconds = 0.0
            with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                for line in answer.iter_lines():
                    seconds = seconds or (time.perf_counter() - began if '"content"' in line else 0.0)
                    if '"timings"' in line:
                        beyond.append(1000 * seconds - json.loads(line[6:])["timings"]["ttft_ms"])
    beyond.sort()
    print(
        f"first byte beyond the first token: median {statistics.median(beyond):.1f} ms, "
        f"95 of 100 under {beyond[int(len(beyond) * 0.95)]:.1f}, worst {beyond[-1]:.1f}"
    )


FIGURES: dict[str, Callable[[Path, Path | None], None]] = {"prefix": prefix, "tasks": tasks, "first": first}


def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("figures", nargs="*", default=list(FIGURES))
    parser.add_argument("--llama", type=Path)
    options = parser.parse_args()
    for figure in options.figures:
        FIGURES[figure](options.model, options.llama)


if __name__ == "__main__":
    main()
