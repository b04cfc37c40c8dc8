"""Compares speculative decoding with llama-server's in turns, using the same real pair of models.

    python -m benchmarks.drafting TARGET.gguf DRAFT.gguf LLAMA_BIN [--rounds 2] [--only edgechat]

Every server is asked to edit code (rename something and repeat the rest) and to write prose, at temperatures
0 and 0.8. Tokens/s are measured between the first and the last piece of an answer. LLAMA_BIN is a folder that
contains llama-server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from benchmarks.reading import events, loaded, posted

CONTEXT = 4096
CODE = '''def summarize(rows, columns, limit=None):
    """Return the totals of some columns, and how many rows had each."""
    totals = {column: 0.0 for column in columns}
    counts = {column: 0 for column in columns}
    for number, row in enumerate(rows):
        if limit is not None and number >= limit:
            break
        for column in columns:
            value = row.get(column)
            if value is None:
                continue
            totals[column] += float(value)
            counts[column] += 1
    averages = {}
    for column in columns:
        if counts[column]:
            averages[column] = totals[column] / counts[column]
        else:
            averages[column] = 0.0
    return totals, counts, averages
'''
TASKS = {
    "code": "Rename the variable `totals` to `sums` in this function. Answer with the whole function, "
    f"and nothing else.\n\n```python\n{CODE}```",
    "prose": "Tell a story of a lighthouse keeper who finds a letter in a bottle, in four paragraphs.",
}
PEER = {
    "plain": (),
    "draft 3": ("--spec-type", "draft-simple", "--spec-draft-n-max", "3"),
    "draft 8, sure": ("--spec-type", "draft-simple", "--spec-draft-n-max", "8", "--spec-draft-p-min", "0.75"),
    "n-grams simple": ("--spec-type", "ngram-simple"),
    "n-grams mod": ("--spec-type", "ngram-mod"),
}


async def ask(port: int, task: str, temperature: float, tokens: int, seed: int) -> float:
    """Return the tokens/s of one answer, measured from its first token on."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": TASKS[task]}],
        "max_tokens": tokens,
        "temperature": temperature,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first = last = 0.0
    n_tokens = 0
    async with posted(port, "/v1/chat/completions", body) as reader:
        async for data in events(reader):
            event = msgspec.json.decode(data)
            if event.get("usage"):
                n_tokens = event["usage"]["completion_tokens"]
            if any(choice["delta"].get("content") for choice in event.get("choices", ())):
                last = time.perf_counter()
                first = first or last
    return (n_tokens - 1) / (last - first)


async def compare(options: argparse.Namespace) -> None:
    """Ask all servers in turns; all are loaded, but only one computes at a time."""
    rates: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    ours = {"plain": "none", "draft": str(options.draft), "n-grams": "ngram"}
    theirs = {
        name: (*words, "-md", str(options.draft)) if "draft" in name else words
        for name, words in PEER.items()
        if options.only != "edgechat"
    }
    async with loaded(options.target, options.llama_bin, CONTEXT, ours, theirs) as ports:
        for number in range(options.rounds + 1):
            for temperature in (0.0, 0.8):
                for task in TASKS:
                    for name, port in ports.items():
                        rate = await ask(port, task, temperature, options.tokens, 1 + number)
                        if number:  # the first round only warms up caches and lets the servers learn
                            rates[task, temperature][name].append(rate)
    print(f"{options.target.name}, drafts by {options.draft.name}, {options.tokens} tokens")
    for (task, temperature), by_name in rates.items():
        plain = statistics.median(by_name["edgechat plain"])
        print(f"{task}, temperature {temperature:g}: tokens/s, and times edgechat's plain decoding")
        for name, values in by_name.items():
            middle = statistics.median(values)
            print(f"  {name:28} {middle:6.1f}  {middle / plain:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", choices=["edgechat"])
    asyncio.run(compare(parser.parse_args()))


if __name__ == "__main__":
    main()
