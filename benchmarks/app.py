"""The app with many conversations: first frame, keypresses, memory. `benchmarks.store` times the search.

    python -m benchmarks.app [--chats 1000] [--turns 50] [--rounds 15]

Runs the real app in a 160 x 45 pseudo-terminal, with the list of conversations open and the guide as the
model. Keypresses are timed while the guide's replies stream.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.keypress import INSTALLED, LETTERS, App
from benchmarks.startup import first_frame
from benchmarks.store import fill

SIGN = "stays on this machine"
SIZE = (45, 160)
QUESTION = "Tell me all about quants, layers, drafts and context\r"


def told(name: str, seconds: list[float]) -> None:
    ordered = [1000 * one for one in sorted(seconds)]
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    middle = statistics.median(ordered)
    print(f"{name:<44}median {middle:6.0f} ms, p95 {p95:6.0f}, worst {ordered[-1]:6.0f} of {len(ordered)}")


def keys(app: App, count: int) -> list[float]:
    """Return how long each keypress takes, in seconds, while replies are streaming."""
    seconds = []
    for number in range(count):
        if number % 4 == 0:
            app.type(QUESTION)
            app.rest(0.15)
        letter = LETTERS[number % len(LETTERS)]
        app.type(letter)
        seconds.append(app.until(letter, 10))
        app.type("\x7f")
        app.rest(0.1)
    return seconds


def run(chats: int, turns: int, rounds: int) -> None:
    began = time.perf_counter()
    asyncio.run(fill(Path(os.environ["EDGECHAT_HOME"]) / "data" / "chats.db", chats, turns))
    print(f"{chats} conversations of {turns} turns, made in {time.perf_counter() - began:.0f} s")
    first_frame(INSTALLED, SIGN, SIZE)
    told("first frame", [first_frame(INSTALLED, SIGN, SIZE) for _ in range(rounds)])
    app = App("guide", SIZE)
    try:
        app.until("tokens (0%)", 60)
        app.rest(3)
        process = psutil.Process(app.pid)
        print(f"memory of the front end once open: {process.memory_info().rss / 2**20:.0f} MiB")
        told("a key while replies stream", keys(app, 4 * rounds))
        print(f"memory of the front end at the end: {process.memory_info().rss / 2**20:.0f} MiB")
    finally:
        app.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGECHAT_HOME"] = home
        (Path(home) / "data").mkdir()
        run(options.chats, options.turns, options.rounds)


if __name__ == "__main__":
    main()
