"""Compares `edgechat serve` with llama-server on answers that follow a schema and on tool calls, in turns.

    python -m benchmarks.constrained MODEL.gguf LLAMA_BIN [--n 20]

Both get the same questions at temperature 0. The total times and the numbers of valid answers are compared.
LLAMA_BIN is a folder that contains llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.reading import peer, posted
from benchmarks.serving import Running

CONTEXT = 4096
CITIES = (
    "Oslo Lima Cairo Kyoto Quito Porto Delhi Accra Hanoi Sofia Turin Perth Leeds Basel Dakar Seoul Tunis "
    "Malmo Havana Boston"
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "country": {"type": "string"},
        "population": {"type": "integer"},
        "languages": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "climate": {"enum": ["tropical", "dry", "temperate", "continental", "polar"]},
    },
    "required": ["name", "country", "population", "languages", "climate"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}


def questions(kind: str, n: int) -> list[dict[str, Any]]:
    """Return the request bodies."""
    common = {"model": "default", "temperature": 0, "max_tokens": 200}
    bodies = []
    for city in CITIES.split()[:n]:
        text = f"Describe the city of {city}."
        more: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required"}
        if kind == "schema":
            schema = {"name": "city", "schema": SCHEMA, "strict": True}
            more = {"response_format": {"type": "json_schema", "json_schema": schema}}
        else:
            text = f"What is the weather in {city}, in celsius?"
        bodies.append(common | more | {"messages": [{"role": "user", "content": text}]})
    return bodies


async def ask(port: int, body: dict[str, Any]) -> tuple[float, int, bool]:
    """Return an answer's time in seconds, its number of tokens, and whether it is valid."""
    began = time.perf_counter()
    async with posted(port, "/v1/chat/completions", body) as reader:
        answer = await reader.read()
        seconds = time.perf_counter() - began
    found = msgspec.json.decode(answer[answer.index(b"{") : answer.rindex(b"}") + 1])
    message = found["choices"][0]["message"]
    try:
        calls = message.get("tool_calls")
        fields = msgspec.json.decode(calls[0]["function"]["arguments"] if calls else message["content"])
        valid = {"city", "unit"} <= set(fields) if calls else set(SCHEMA["required"]) <= set(fields)
    except (KeyError, TypeError, msgspec.DecodeError):
        valid = False
    return seconds, found["usage"]["completion_tokens"], valid


async def compare(options: argparse.Namespace) -> None:
    async with (
        Running(options.model, CONTEXT, draft="auto") as ours,
        peer(options.llama_bin, options.model, slots=1, context=CONTEXT) as port,
    ):
        for kind in ("schema", "tool"):
            sums = {"edgechat": [0.0, 0, 0], "llama-server": [0.0, 0, 0]}
            for body in questions(kind, options.n):
                for name, at in (("edgechat", ours.port), ("llama-server", port)):
                    for index, value in enumerate(await ask(at, body)):
                        sums[name][index] += value
            for name, (seconds, tokens, valid) in sums.items():
                print(f"{kind}: {name:13} {seconds:6.1f} s, {tokens:.0f} tokens, {valid:.0f} valid")
            ratio = sums["edgechat"][0] / sums["llama-server"][0]
            print(f"{kind}: {ratio:.3f} of llama-server's time", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("--n", type=int, default=20)
    asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
