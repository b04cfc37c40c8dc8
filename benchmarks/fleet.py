"""How many people one machine can serve, and when several machines pay off: a quick simulation.

    python -m benchmarks.fleet check     compare with closed forms, our own server and published figures
    python -m benchmarks.fleet one       how many people one machine serves, by engine and habit
    python -m benchmarks.fleet routers   four machines: random, least loaded, prefix affinity
    python -m benchmarks.fleet apart     four machines: prefill and decode together or apart
    python -m benchmarks.fleet costs URL MODEL   measure C(n) and the prefill rate of a running server;
                                                 its key is read from OPENAI_API_KEY

With --figure FILE, `routers` and `apart` draw the pictures in docs/scale.md. `benchmarks.fleet_simulation`
contains the model, and docs/scale.md the results. To add another engine, measure its costs and put them where
CPU, SPARK and A100 are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2 as httpx

from benchmarks.fleet_simulation import (
    EDGECHAT,
    WHOLE,
    Costs,
    Fleet,
    Habit,
    Link,
    Once,
    Person,
    Policy,
    Report,
    Request,
    poisson,
)

CPU = Costs(
    "2 cores, 1.1B Q4_0",
    "measured by us (llama.cpp, TinyLlama's shape): C(n) at no depth and behind 1,024 tokens, prompts of 512 "
    "and 1,400 tokens",
    ((1, 0.0149), (4, 0.0288), (8, 0.0498), (16, 0.0767)),
    cell_seconds=3.7e-6,
    token_seconds=3.65e-3,
    pair_seconds=0.8e-6,
    cells=32768,
    cell_bytes=22528,
    slots=8,
)
SPARK = Costs(
    "DGX Spark, 7B Q8_0",
    "llama.cpp, benches/dgx-spark: llama-batched-bench of Qwen2.5-Coder 7B, depths 512 to 8,192; our fit",
    ((1, 0.0342), (2, 0.0367), (4, 0.0378), (8, 0.0400), (16, 0.0458), (32, 0.0494)),
    cell_seconds=0.29e-6,
    token_seconds=0.41e-3,
    pair_seconds=7.9e-9,
    cells=270336,
    cell_bytes=57344,
    slots=32,
)
A100 = Costs(
    "A100, 13B F16",
    "DistServe's artifact, simdistserve: its fit of OPT-13B on one A100 80 GB; cells are 0.9 of the memory "
    "less the weights",
    ((1, 0.01997), (95, 0.02359), (96, 0.02236), (256, 0.04769)),
    cell_seconds=0.627e-6,
    token_seconds=0.0926e-3,
    pair_seconds=12.9e-9,
    cells=56000,
    cell_bytes=819200,
    slots=256,
)
VLLM = replace(
    A100,
    name="A100, 13B F16, vLLM of 2023",
    origin="DistServe's artifact: its fit of vLLM on the same GPU",
    steps=((1, 0.01961), (95, 0.02437), (96, 0.03028), (256, 0.05268)),
    cell_seconds=0.494e-6,
    token_seconds=0.1505e-3,
    pair_seconds=17.3e-9,
)
ROOMY = replace(CPU, name=f"{CPU.name}, 131,072 cells", cells=131072)

CHAT = Habit("chat", per_hour=12, first=80, prompt=60, reply=250, turns=8)
DOCUMENTS = Habit("documents", per_hour=8, first=3000, prompt=80, reply=250, turns=4)
AGENT = Habit("agent", per_hour=120, first=500, prompt=500, reply=150, turns=20, system=8000, context=32768)
HABITS = (CHAT, DOCUMENTS, AGENT)

FIRST, GAP = 5.0, 0.25
"""Limits, in seconds, for the time to first token and for the 95th percentile of gaps."""


def served(report: Report) -> bool:
    """Return True if the 95th percentiles of first tokens and gaps are within their limits."""
    return bool(report.first) and report.first_token(0.95) <= FIRST and report.gap(0.95) <= GAP


def most(fits: Callable[[int], bool], limit: int = 4096) -> int:
    """Return the largest number that fits, to within 1/30, or 0 if not even 1 fits."""
    low, high = 0, 1
    while high <= limit and fits(high):
        low, high = high, high * 2
    while high - low > max(1, low // 30):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def crowd(costs: Costs, habit: Habit, n_people: int, **options: Any) -> Report:
    """Simulate `n_people` after a ten-minute warm-up; with fewer people, the simulation covers more time."""
    people = [Person(number, habit, seed=1) for number in range(n_people)]
    fleet = Fleet(costs, people, system=habit.system, **options)
    return fleet.simulate(span(habit, n_people), warm=600)


def span(habit: Habit, n_people: int) -> float:
    """Return the seconds that these people take to ask about 600 questions, but no less than 15 minutes."""
    return max(900, min(600 * 3600 / habit.per_hour / n_people, 6 * 3600))


def one() -> None:
    """Print how many people one machine can serve."""
    print("| engine | habit | people | questions/h | first token p50, p95 | gap p50, p95 | busy |")
    print("|---|---|---|---|---|---|---|")
    narrow = replace(SPARK, name=f"{SPARK.name}, 8 at once", slots=8)
    for costs in (CPU, ROOMY, SPARK, narrow, A100):
        for habit in HABITS:
            n = most(lambda n, costs=costs, habit=habit: served(crowd(costs, habit, n)))
            report = crowd(costs, habit, max(n, 1))
            per_hour = len(report.first) * 3600 / span(habit, max(n, 1))
            print(
                f"| {costs.name} | {habit.name} | **{n}** | {per_hour:.0f} | "
                f"{report.first_token(0.5):.2f}, {report.first_token(0.95):.2f} s | "
                f"{1000 * report.gap(0.5):.0f}, {1000 * report.gap(0.95):.0f} ms | {report.busy:.0%} |",
                flush=True,
            )


def routers(file: Path | None) -> None:
    """Print the effect of different routers on four machines, and plot it for agents."""
    print("| engine, habit | router | people | of the prompt cached | first token p50, p95 | busy |")
    print("|---|---|---|---|---|---|")
    for costs, habit in ((ROOMY, CHAT), (SPARK, DOCUMENTS), (SPARK, AGENT)):
        numbers = {
            router: most(lambda n, r=router: served(crowd(costs, habit, n, n=4, router=r)))  # noqa: B023
            for router in ("random", "least", "affinity")
        }
        for router, n in numbers.items():  # the details compare all three with the same number of people
            report = crowd(costs, habit, numbers["affinity"] // 2, n=4, router=router)
            print(
                f"| {costs.name}, {habit.name} | {router} | **{n}** | "
                f"{report.cached / (report.cached + report.computed):.0%} | "
                f"{report.first_token(0.5):.2f}, {report.first_token(0.95):.2f} s | {report.busy:.0%} |",
                flush=True,
            )
    if file is None:
        return
    figure, (left, right) = _axes()
    counts = [10, 20, 30, 40, 50, 60, 70]
    for router, marker in zip(("random", "least", "affinity"), "os^", strict=True):
        reports = [crowd(SPARK, AGENT, n, n=4, router=router) for n in counts]
        left.plot(counts, [one.first_token(0.95) for one in reports], marker=marker, label=router)
        right.plot(counts, [1000 * one.gap(0.95) for one in reports], marker=marker)
    left.set(xlabel="agents", ylabel="first token, p95, s", yscale="log")
    right.set(xlabel="agents", ylabel="gap, p95, ms", ylim=(0, None))
    left.legend()
    _save(figure, file)


def goodput(costs: Costs, prompt: int, reply: int, first: float, per_token: float, **options: Any) -> float:
    """Return the highest requests/s, in steps of 1/20, at which nine in ten requests meet both limits."""

    def fits(twentieths: int) -> bool:
        fleet = Fleet(costs, poisson(twentieths / 20, 130, prompt, reply, seed=2), router="least", **options)
        return fleet.simulate(120, warm=20).attained(first, per_token) >= 0.9

    return most(fits) / 20


SHAPES: tuple[tuple[str, int, Policy, float], ...] = (
    ("together, prompts whole and first", 0, WHOLE, 0),
    ("together, chunks as edgechat's", 0, EDGECHAT, 0),
    ("1 reads, 3 write, 100 Gbit/s", 1, WHOLE, 100e9),
    ("2 read, 2 write, 100 Gbit/s", 2, WHOLE, 100e9),
    ("2 read, 2 write, 10 Gbit/s", 2, WHOLE, 10e9),
    ("2 read, 2 write, 1 Gbit/s", 2, WHOLE, 1e9),
)
WORK = ((512, 64, 40), (2000, 200, 10))
"""Prompt and reply lengths, and the highest requests/s to try."""
PER_TOKEN = (0.022, 0.025, 0.03, 0.04, 0.06, 0.1)


def apart(file: Path | None) -> None:
    """Print and plot the requests/s of four GPUs by latency limit, with and without separate prefill."""
    figure, plots = _axes() if file else (None, (None, None))
    print("| prompt, reply | first token | " + " | ".join(f"{1000 * one:.0f} ms" for one in PER_TOKEN) + " |")
    print("|---" * (len(PER_TOKEN) + 2) + "|")
    for (prompt, reply, highest), axes in zip(WORK, plots, strict=True):
        for (name, readers, policy, bits), marker in zip(SHAPES, "os^v<>", strict=True):
            reports = {0.0: None}
            for step in range(1, 9):
                people = poisson(rate := highest * step / 8, 110, prompt, reply, seed=2)
                options = {"n": 4, "n_prefill": readers, "policy": policy, "link": Link(bits or 1e9)}
                reports[rate] = Fleet(A100, people, router="least", **options).simulate(100, warm=20)
            for first in (0.4, 2.0):
                kept = [_kept(reports, first, limit) for limit in PER_TOKEN]
                print(f"| {prompt}, {reply}: {name} | {first:g} s | "
                      + " | ".join(f"{rate:.1f}" for rate in kept) + " |", flush=True)  # fmt: skip
                if axes and first == 2.0 and bits != 1e9:
                    axes.plot([1000 * one for one in PER_TOKEN], kept, marker=marker, label=name)
        if axes:
            axes.set(xlabel="limit of a reply's mean gap, ms", ylabel="requests/s", ylim=(0, None))
            axes.set_title(f"prompts of {prompt}, replies of {reply}", fontsize=9)
    if file and figure:
        figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        _save(figure, file)


def _kept(reports: dict[float, Report | None], first: float, per_token: float) -> float:
    """Return the rate up to which nine in ten requests meet both limits, by interpolation."""
    shares = [(rate, one.attained(first, per_token) if one else 1.0) for rate, one in reports.items()]
    for (rate, share), (higher, less) in pairwise(shares):
        if less < 0.9:
            return rate + (higher - rate) * max(share - 0.9, 0) / (share - less) if share > less else rate
    return shares[-1][0]


def _axes() -> tuple[Any, Any]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "edgechat", "font.size": 9}
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    return figure, figure.subplots(1, 2)


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, format="svg", metadata={"Date": None})


class Client(Once):
    """Asks one question after another, each in a new conversation."""

    def __init__(self, number: int, prompt: int, reply: int) -> None:
        super().__init__(number, 0.0, prompt, reply)
        self._sizes, self._n = (number, prompt, reply), 0

    def pause(self) -> float:
        return 0.0

    def ask(self, now: float) -> Request:
        number, prompt, reply = self._sizes
        self._n += 1
        return Request(number, number * 1_000_000 + self._n, prompt, reply, prompt, now)


def check() -> None:
    """Print the simulation's results next to known ones."""
    rate, service = 0.7 / CPU.call(0, 0, ((0, 200),)), CPU.call(0, 0, ((0, 200),))
    alone = replace(CPU, slots=1)
    report = Fleet(alone, poisson(rate, 20000 * service, 200, 1, seed=3)).simulate(20000 * service)
    wait = statistics.fmean(report.first) - service
    print(f"M/D/1 at 0.7: wait {wait / service:.3f} of a service, by theory {0.7 / (2 * 0.3):.3f}")

    # The speed on the day of "Latency of the server" in RESULTS.md: 40 ms per token, 8 ms per prompt token.
    slow = 40 / 14.9
    day = replace(
        CPU,
        steps=tuple((n, seconds * slow) for n, seconds in CPU.steps),
        cell_seconds=CPU.cell_seconds * slow,
        token_seconds=0.008,
    )
    measured = {1: (15.5, 593, 39), 4: (20.5, 1622, 143), 8: (23.6, 5538, 155), 16: (27.1, 9844, 221)}
    print("\n| clients | tokens/s: measured, simulated | first token p50 | gap p50 |\n|---|---|---|---|")
    for n, (tokens, first, gap) in measured.items():
        report = Fleet(day, [Client(i, 64, 32) for i in range(n)]).simulate(200, warm=10)
        print(
            f"| {n} | {tokens}, {report.written / 200:.1f} | "
            f"{first}, {1000 * report.first_token(0.5):.0f} ms | "
            f"{gap}, {1000 * report.gap(0.5):.0f} ms |"
        )
    report = Fleet(CPU, [Client(i, 16, 256) for i in range(8)]).simulate(200, warm=20)
    print(f"\nllama-server, 8 clients: 158 tokens/s and gaps of 48 ms; simulated {report.written / 200:.0f} "
          f"and {1000 * report.gap(0.5):.0f}")  # fmt: skip

    print("\nDistServe's introduction (13B, 512 in, 64 out, P90 of 0.4 s and 40 ms), requests/s of a GPU:")
    for costs in (VLLM, A100):
        together = goodput(costs, 512, 64, 0.4, 0.04, policy=WHOLE)
        chunked = goodput(costs, 512, 64, 0.4, 0.04)
        reads = goodput(costs, 512, 1, 0.4, math.inf, policy=WHOLE)
        split = goodput(costs, 512, 64, 0.4, 0.04, n=3, n_prefill=2, policy=WHOLE, link=Link(600e9)) / 3
        print(
            f"  {costs.name}: together {together:.1f} (published 1.6), in chunks {chunked:.1f}, "
            f"reading alone {reads:.1f} (5.6), 2 reading for 1 that writes {split:.1f} (3.3)"
        )

    # Sarathi-Serve's comparison: 99th percentile of gaps below five decode steps, with ShareGPT's lengths.
    habit = Habit("shared", per_hour=60, first=1730, prompt=1, reply=415, turns=1, system=0, context=8192)
    numbers = []
    for policy in (WHOLE, Policy(call_limit=0.12, calls=1)):

        def fits(n: int, policy: Policy = policy) -> bool:
            report = crowd(A100, habit, n, policy=policy)
            return bool(report.first) and report.first_token(0.5) <= 2 and report.gap(0.99) <= 0.12

        numbers.append(most(fits))
    print(f"\nSarathi-Serve's strict limit: {numbers[0]} people with whole prompts, {numbers[1]} in chunks "
          f"(published for Mistral 7B: 2.6 times as many)")  # fmt: skip


COUNT = "Count from one to a thousand in words. "
"""Eight words that make models give long answers."""


async def _stream(client: httpx.AsyncClient, model: str, words: int, tokens: int, key: int) -> list[float]:
    """Return when the request was sent, and when each piece of the reply arrived."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"{key} " + COUNT * (words // 8)}],
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
    }
    times = [time.perf_counter()]
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {") and (choices := json.loads(line[6:]).get("choices")):
                delta = choices[0].get("delta", {})
                if delta.get("content") or delta.get("reasoning_content"):
                    times.append(time.perf_counter())
    return times


async def measure(
    url: str, model: str, key: str, counts: Sequence[int] = (1, 2, 4, 8), tokens: int = 48
) -> None:
    """Print what a server's calls cost: per token with n streams, and the time to read two prompts."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600) as client:
        await _stream(client, model, 8, 4, 0)
        steps = []
        for n in counts:
            rounds = []
            for start in (100 * n, 1000 * n, 10000 * n):
                keys = range(start, start + n)
                streams = await asyncio.gather(*[_stream(client, model, 8, tokens, one) for one in keys])
                begin, end = max(one[1] for one in streams), min(one[-1] for one in streams)
                pieces = sum(begin < at <= end for one in streams for at in one[1:])
                if pieces:  # otherwise one reply ended before another started
                    rounds.append((end - begin) * n / pieces)
            if rounds:
                steps.append((n, round(statistics.median(rounds), 5)))
                print(f"{n} at once: {1000 * steps[-1][1]:.1f} ms a call", flush=True)
        short, long = [await _stream(client, model, words, 4, words) for words in (200, 1000)]
    slope = ((long[1] - long[0]) - (short[1] - short[0])) / 800
    print(f"steps={tuple(steps)}, token_seconds={slope:.3g} (a word of the prompt counted as a token)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("check", "one"):
        commands.add_parser(name)
    for name in ("routers", "apart"):
        commands.add_parser(name).add_argument("--figure", type=Path, metavar="FILE")
    costs = commands.add_parser("costs")
    costs.add_argument("url")
    costs.add_argument("model")
    options = parser.parse_args()
    if options.command == "costs":
        asyncio.run(measure(options.url, options.model, os.environ.get("OPENAI_API_KEY", "")))
    elif "figure" in options:
        {"routers": routers, "apart": apart}[options.command](options.figure)
    else:
        {"check": check, "one": one}[options.command]()


if __name__ == "__main__":
    main()
