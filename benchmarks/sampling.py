"""Sampling alone, with large vocabularies: milliseconds per token, compared with reading the logits once.

    python -m benchmarks.sampling [--rounds 60]

The logits are random, with a few likely tokens as in real models. Between tokens, a hundred megabytes are
read, as the weights would be, so that nothing is left in the CPU's caches. The settings take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from edgechat.engine.backends.base import Logits
from edgechat.engine.sampling import Sampler
from edgechat.engine.types import Sampling

VOCABULARIES = {"Qwen": 151_936, "Gemma": 262_144}
SETTINGS = {
    "greedy": Sampling(temperature=0),
    "default": Sampling(),
    "default, repetition_penalty 1.1": Sampling(repetition_penalty=1.1),
    "Gemma's": Sampling(temperature=1.0, top_k=64, top_p=0.95, min_p=0.0),
    "Qwen's": Sampling(temperature=0.7, top_k=20, top_p=0.8, min_p=0.0),
    "min_p 0.05 alone": Sampling(top_k=0, top_p=1.0),
    "top_p 0.95 alone": Sampling(top_k=0, min_p=0.0),
    "no filter": Sampling(top_k=0, top_p=1.0, min_p=0.0),
}
_N_LIKELY = 60
_RECENT = list(range(1000))


def row(n_vocab: int, seed: int) -> Logits:
    """Return logits like those of a real model."""
    random = np.random.default_rng(seed)
    logits = (2.4 * random.standard_normal(n_vocab)).astype(np.float32)
    logits[random.integers(0, n_vocab, _N_LIKELY)] = np.linspace(24, 8, _N_LIKELY)
    return logits


def measure(n_vocab: int, rounds: int) -> dict[str, float]:
    """Return the median time in milliseconds to sample a token with each setting, or to find a maximum."""
    logits = np.zeros(n_vocab, np.float32)  # one buffer for all tokens, as in llama.cpp
    weights = np.zeros(25_000_000, np.float32)
    samplers = {name: Sampler(sampling) for name, sampling in SETTINGS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ("reading the row", *samplers)}
    for number in range(rounds):
        logits[:] = row(n_vocab, number)
        for name, taken in seconds.items():
            weights.max()
            began = time.perf_counter()
            if name in samplers:
                samplers[name].choose(logits, _RECENT)
            else:
                logits.max()
            taken.append(time.perf_counter() - began)
    return {name: 1000 * statistics.median(taken) for name, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    for family, n_vocab in VOCABULARIES.items():
        print(f"a vocabulary of {n_vocab:,}, as {family}'s")
        for name, milliseconds in measure(n_vocab, options.rounds).items():
            print(f"  {milliseconds:.3f} ms  {name}")


if __name__ == "__main__":
    main()
