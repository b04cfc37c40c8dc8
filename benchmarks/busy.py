"""Decode speed alongside a busy process, depending on how long OpenMP's threads spin before they sleep.

    python -m benchmarks.busy [--rounds 4]

Every measurement is a separate process (OpenMP reads GOMP_SPINCOUNT only once), and the settings take turns.
The busy process computes in one thread at normal priority, as a browser tab or a build would.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tests.kit import TINYLLAMA, Spec, build

SPINS = {"300000 (OpenMP's own)": "300000", "1000 (ours)": "1000", "0": "0"}
TOKENS = 16


def run(model: Path, spin: str) -> float:
    """Return the tokens/s of a bare loop in a process with this spin count."""
    environment = {**os.environ, "GOMP_SPINCOUNT": spin}
    command = [sys.executable, "-m", "benchmarks.busy", "--once", str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def once(model: Path) -> None:
    from benchmarks.streaming import Bare

    bare = Bare(model, 512)
    bare.run(64, 4)
    print(bare.run(64, TOKENS))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        once(options.once)
        return
    model = build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000))
    for busy in (False, True):
        rates: dict[str, list[float]] = {name: [] for name in SPINS}
        beside = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        try:
            for _ in range(options.rounds):
                for name, spin in SPINS.items():
                    rates[name].append(run(model, spin))
        finally:
            if beside is not None:
                beside.kill()
                beside.wait()
        shown = ", ".join(f"{name} {statistics.median(found):.1f}" for name, found in rates.items())
        print(f"{'beside a busy process' if busy else 'alone'}: tokens/s by spin count: {shown}")


if __name__ == "__main__":
    main()
