"""What every model with a head computes, and the matrices that make an architecture compute it.

The residual stream has five parts:

    CURRENT   the token's embedding; nothing else writes there, so every hidden state contains it
    PREVIOUS  the token before, provided by an attention head that looks back one position
    EARLIER   the tokens two, three and five positions back, provided by other heads
    SAID      what the main layer's feed-forward makes of these, and the other layers' noise
    ONE       a constant, from which queries and keys are made, so that they depend only on positions

The logits read SAID, and a little of CURRENT to avoid repetition. A drafting head gets CURRENT from its
token's embedding, PREVIOUS from CURRENT in the hidden state that it is given, and EARLIER from its own KV
cache; its feed-forward is the main layer's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.kit.heads.files import Array
from tests.kit.tokenizers import N_BYTES_VOCAB, NOT_PRINTABLE
from tests.kit.weights import generator

N_EMBD = 64
N_PART, N_SAID = 16, 15
CURRENT, PREVIOUS, EARLIER = (slice(start, start + N_PART) for start in (0, 16, 32))
SAID, ONE = slice(48, 48 + N_SAID), 63

CONSTANT, FAINT, LOUD = 2.0, 0.5, 0.3
"""Magnitudes of ONE, of each token in EARLIER, and of SAID; those of CURRENT and PREVIOUS are 1."""
BACK = ((1, PREVIOUS, 1.0), (2, EARLIER, FAINT), (3, EARLIER, FAINT), (5, EARLIER, FAINT))
"""For each attention head: how far it looks back, the part it writes to, and the factor."""
LOGIT_SCALE = 5.0
"""Standard deviation of the logits."""
RELUCTANCE = 1.5
"""By how many standard deviations the last token's logit is lowered, to avoid endless repetition."""
ROPE_BASE = 10.0
"""Small, so that all of a head's channels rotate fast enough to distinguish neighboring positions."""
SHARPNESS = 8.0
"""How much higher a position scores than any other, per pair of channels, before the softmax."""


def rms(*parts: float) -> float:
    """Return the root mean square of a stream whose parts have these sums of squares."""
    return math.sqrt(sum(parts) / N_EMBD)


_TOKEN = float(N_PART)
EMBEDDED = rms(_TOKEN, CONSTANT**2)
"""Root mean square of an embedding."""
JOINED = rms(2 * _TOKEN, CONSTANT**2)
"""Root mean square of a head's stream before its attention: CURRENT and PREVIOUS."""
WHOLE = rms(2 * _TOKEN, CONSTANT**2, 3 * FAINT**2 * _TOKEN, LOUD**2 * N_SAID)
"""Root mean square of the stream after the main layer."""


def zeros(*shape: int) -> Array:
    """Return a matrix of zeros."""
    return np.zeros(shape, np.float32)


def ones(n: int) -> Array:
    """Return the weights of a norm that only normalizes."""
    return np.ones(n, np.float32)


@dataclass(frozen=True, slots=True)
class Dice:
    """The source of a model's random weights, independent for each tensor name."""

    seed: int

    def normal(self, name: str, *shape: int, std: float) -> Array:
        """Return random numbers."""
        return generator(self.seed, name).standard_normal(shape, np.float32) * np.float32(std)

    def directions(self, name: str, n: int, width: int, length: float) -> Array:
        """Return n random vectors of the same length."""
        rows = self.normal(name, n, width, std=1.0)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) * np.float32(length)

    def embeddings(self) -> Array:
        """Return the embedding of every token."""
        table = zeros(N_BYTES_VOCAB, N_EMBD)
        table[:, CURRENT] = self.directions("token_embd", N_BYTES_VOCAB, N_PART, math.sqrt(N_PART))
        table[:, ONE] = CONSTANT
        return table

    def logits(self) -> Array:
        """Return the matrix from the normalized stream to logits; only printable tokens have any."""
        table = zeros(N_BYTES_VOCAB, N_EMBD)
        table[:, SAID] = self.directions("output", N_BYTES_VOCAB, N_SAID, LOGIT_SCALE * WHOLE / LOUD)
        reluctance = RELUCTANCE * LOGIT_SCALE * WHOLE / N_PART
        table[:, CURRENT] = self.embeddings()[:, CURRENT] * np.float32(-reluctance)
        table[list(NOT_PRINTABLE)] = 0
        return table

    def feed_forward(self, name: str, n_ff: int, gain: float) -> tuple[Array, Array, Array]:
        """Return the matrices (gate, up, down) of a random feed-forward from the tokens' parts to SAID.

        gain: standard deviation of what it adds, relative to the main layer's.
        """
        gate, up = (
            self.normal(name + kind, n_ff, N_EMBD, std=WHOLE / math.sqrt(N_PART)) for kind in ("gate", "up")
        )
        for matrix in (gate, up):
            matrix[:, EARLIER.stop :] = 0
        return gate, up, self.into_said(name + "down", n_ff, gain * LOUD / 1.5)

    def into_said(self, name: str, n_in: int, gain: float) -> Array:
        """Return a random matrix that writes only to SAID, from inputs with a standard deviation of 1."""
        matrix = zeros(N_EMBD, n_in)
        matrix[SAID] = self.normal(name, N_SAID, n_in, std=gain / math.sqrt(n_in))
        return matrix


@dataclass(frozen=True, slots=True)
class Gaze:
    """A head that looks at a single position, `distance` before its own."""

    distance: int
    n_channels: int
    """Number of channels that rotate with the position."""
    pairs: Literal["halves", "neighbours"] = "halves"
    """Which channels rotate together."""

    def key(self) -> Array:
        """Return the key, the same for every distance: one channel of each pair is 1."""
        return self._turned(0)

    def query(self) -> Array:
        """Return the query."""
        return self._turned(self.distance)

    def _turned(self, distance: int) -> Array:
        n = self.n_channels // 2
        angles = -distance * ROPE_BASE ** (-np.arange(n) / n)
        pairs = np.stack([np.cos(angles), np.sin(angles)], axis=int(self.pairs == "neighbours"))
        return pairs.reshape(-1).astype(np.float32)
