"""Tiny models with drafting heads: llama.cpp's multi-token prediction (MTP) and EAGLE-3.

    path = with_head("qwen35", eps=0.1)             the head is in the file
    target, drafter = eagle3_pair(eps=0.1)          the head is a file of its own

Their weights are set by hand where the next token is decided, and random elsewhere; what that means is told
in stream.py. The target's other layers add noise, each `eps` times as loud as what decides. How often the
head's best token is the target's, along greedy texts:

    eps                       0      0.02   0.05   0.1    0.2
    qwen35                    0.97   0.93   0.85   0.72   0.56
    glm4_moe                  0.96   0.93   0.87   0.80   0.62
    deepseek2                 0.97   0.93   0.86   0.74   0.57
    step35                    0.97   0.91   0.85   0.74   0.53
    eagle3                    0.96   0.91   0.83   0.68   0.43

Given no hidden states, or those of another token, or a KV cache without the text, it is 0.2 at most:
an engine that mixes them up is noticed. Greedy text is varied and does not repeat itself.
"""

from tests.kit.heads.models import MTP, Pair, eagle3_pair, with_head

__all__ = ["MTP", "Pair", "eagle3_pair", "with_head"]
