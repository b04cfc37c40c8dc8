"""Tiny models with drafting heads: llama.cpp's multi-token prediction (MTP) and EAGLE-3.

    path = with_head("qwen35", eps=0.1)             the head is in the model's file
    target, drafter = split_head("qwen35")          the same head in its own file, mtp-*.gguf
    target, drafter = eagle3_pair(eps=0.1)          a draft made for one target
    target, drafter = gemma4_pair(eps=0.1)          a drafter that reads its target's KV cache

The weights that decide the next token are set by hand, as described in stream.py; the others are random. The
target's other layers add noise, each `eps` times as loud as what decides. How often the head's best token is
the target's, in greedy texts:

    eps                       0      0.02   0.05   0.1    0.2
    qwen35                    0.95   0.94   0.85   0.75   0.60
    glm4_moe                  0.96   0.93   0.88   0.81   0.63
    deepseek2                 0.96   0.92   0.88   0.76   0.63
    step35                    0.95   0.93   0.88   0.78   0.58
    eagle3                    0.96   0.92   0.85   0.70   0.49
    gemma4, first token       0.92   0.90   0.85   0.72   0.50
    gemma4, later tokens      0.72   0.74   0.73   0.65   0.45

With no hidden states, those of another token, or a KV cache without the text, it is 0.25 at most, so an
engine that mixes them up is caught. Greedy text is varied and does not repeat itself.
"""

from tests.kit.heads.models import MTP, Pair, eagle3_pair, gemma4_pair, split_head, with_head

__all__ = ["MTP", "Pair", "eagle3_pair", "gemma4_pair", "split_head", "with_head"]
