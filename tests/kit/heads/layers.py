"""Blocks that most architectures share: attention that looks back, experts, joining a head's inputs.

Each comes in two forms. The main layer's decides the next token, and is repeated in the drafting layer. That
of other layers is noise from random weights, written only to SAID.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tests.kit.heads.files import Array
from tests.kit.heads.stream import (
    BACK,
    CONSTANT,
    CURRENT,
    EMBEDDED,
    JOINED,
    LOUD,
    N_EMBD,
    N_PART,
    ONE,
    PREVIOUS,
    ROPE_BASE,
    SHARPNESS,
    WHOLE,
    Dice,
    Gaze,
    ones,
    zeros,
)


class Attention(NamedTuple):
    """The matrices of an attention block."""

    q: Array
    """[heads, width, N_EMBD], as are k and v."""
    k: Array
    v: Array
    o: Array
    """[N_EMBD, heads, width]."""

    def named(self, p: str) -> dict[str, Array]:
        """Return the matrices as the named tensors of a layer."""
        return {
            p + "attn_q.weight": self.q.reshape(-1, N_EMBD),
            p + "attn_k.weight": self.k.reshape(-1, N_EMBD),
            p + "attn_v.weight": self.v.reshape(-1, N_EMBD),
            p + "attn_output.weight": self.o.reshape(N_EMBD, -1),
        }


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of an attention block."""

    n_kv: int = 2
    width: int = 32
    turning: int = 32
    """Number of channels in a head that rotate with the position."""
    pairs: Literal["halves", "neighbours"] = "halves"
    normed: bool = True
    """Whether queries and keys are normalized per head."""

    def looking(self, *, drafts: bool) -> Attention:
        """Return the main layer's attention. drafts: leave out PREVIOUS, which the hidden state has."""
        before = JOINED if drafts else EMBEDDED
        q, k = zeros(len(BACK), self.width, N_EMBD), zeros(self.n_kv, self.width, N_EMBD)
        v, o = zeros(self.n_kv, self.width, N_EMBD), zeros(N_EMBD, len(BACK), self.width)
        loud = 1.0 if self.normed else math.sqrt(SHARPNESS * math.sqrt(self.width)) * before / CONSTANT
        for head, (distance, part, much) in enumerate(BACK):
            q[head, : self.turning, ONE] = Gaze(distance, self.turning, self.pairs).query() * loud
            if not (drafts and part is PREVIOUS):
                o[part, head, :N_PART] = shuffled(head) * (much * before)
        k[:, : self.turning, ONE] = Gaze(0, self.turning, self.pairs).key() * loud
        v[:, :N_PART, CURRENT] = np.eye(N_PART)
        return Attention(q, k, v, o)

    def noise(self, dice: Dice, p: str, eps: float) -> Attention:
        """Return another layer's attention, which is noise."""
        std = 1 / math.sqrt(N_EMBD)
        q = dice.normal(p + "q", len(BACK), self.width, N_EMBD, std=std)
        k, v = (dice.normal(p + name, self.n_kv, self.width, N_EMBD, std=std) for name in "kv")
        o = dice.into_said(p + "o", len(BACK) * self.width, eps * LOUD)
        return Attention(q, k, v, o.reshape(N_EMBD, len(BACK), self.width))

    def norm(self) -> Array:
        """Return the weights of the main layer's query and key norms."""
        n_pairs = self.turning / 2
        return ones(self.width) * np.float32(math.sqrt(SHARPNESS * n_pairs / math.sqrt(self.width)))


def shuffled(head: int) -> Array:
    """Return a head's order of a token's channels, by which EARLIER distinguishes the positions."""
    return np.roll(np.eye(N_PART, dtype=np.float32), head, axis=0)


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward block with experts, and one shared by all tokens."""

    n: int = 4
    n_ff: int = 32

    def named(self, dice: Dice, p: str, name: str, gain: float) -> dict[str, Array]:
        """Return a layer's tensors. name: of the random weights; gain: as in `Dice.feed_forward`."""
        shared, *experts = (dice.feed_forward(f"{name}{i}", self.n_ff, gain / 1.2) for i in range(self.n + 1))
        router = dice.normal(name + "router", self.n, N_EMBD, std=2 / math.sqrt(2 * N_PART))
        router[:, PREVIOUS.stop :] = 0
        found = {p + "ffn_gate_inp.weight": router, p + "exp_probs_b.bias": zeros(self.n)}
        for i, kind in enumerate(("gate", "up", "down")):
            found[f"{p}ffn_{kind}_shexp.weight"] = shared[i]
            found[f"{p}ffn_{kind}_exps.weight"] = np.stack([expert[i] for expert in experts])
        return found

    def keys(self) -> dict[str, object]:
        """Return the metadata of the experts."""
        return {
            "expert_count": self.n,
            "expert_used_count": 2,
            "expert_shared_count": 1,
            "expert_feed_forward_length": self.n_ff,
            "expert_weights_norm": True,
            "expert_gating_func": 2,  # sigmoid
        }


def dense(dice: Dice, p: str, name: str, n_ff: int, gain: float) -> dict[str, Array]:
    """Return the tensors of a layer's feed-forward block, without experts."""
    made = zip(("gate", "up", "down"), dice.feed_forward(name, n_ff, gain), strict=True)
    return {f"{p}ffn_{kind}.weight": matrix for kind, matrix in made}


def norms(p: str, *names: str) -> dict[str, Array]:
    """Return the weights of norms that only normalize."""
    return {f"{p}{name}.weight": ones(N_EMBD) for name in names}


def joining(p: str) -> dict[str, Array]:
    """Return the tensors that make a drafting layer's stream from a token and a hidden state."""
    join = zeros(N_EMBD, 2 * N_EMBD)
    token, hidden = join[:, :N_EMBD], join[:, N_EMBD:]
    token[CURRENT, CURRENT] = np.eye(N_PART) * EMBEDDED
    token[ONE, ONE] = EMBEDDED
    hidden[PREVIOUS, CURRENT] = np.eye(N_PART) * WHOLE
    return {f"{p}nextn.eh_proj.weight": join} | norms(
        p, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"
    )


def ends(dice: Dice) -> dict[str, Array]:
    """Return the tensors before the first layer and after the last."""
    return {
        "token_embd.weight": dice.embeddings(),
        "output.weight": dice.logits(),
    } | norms("", "output_norm")


def common_keys(n_layers: int, n_heads: int, n_ff: int, **more: object) -> dict[str, object]:
    """Return the metadata that every model has. n_layers: includes those that draft."""
    return {
        "block_count": n_layers,
        "context_length": 4096,
        "embedding_length": N_EMBD,
        "feed_forward_length": n_ff,
        "attention.head_count": n_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": ROPE_BASE,
    } | more
