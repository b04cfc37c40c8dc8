"""Small real models with random weights, for tests and benchmarks: made in milliseconds, kept in `.models/`.

    path = tiny("hybrid")                                   the smallest model of a kind
    path = build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000))
    target, draft = pair(eps=0.05)                          agree about half the time

Needs only `gguf` and `numpy`. tests/kit/mlx.py makes the same models for MLX, which needs mlx-lm.
"""

from tests.kit.build import MODELS_DIR, Q4_K_M, Spec, build, tiny
from tests.kit.pairs import PAIR, pair
from tests.kit.shapes import (
    DENSE,
    DRAFT_68M,
    EMBEDDERS,
    HYBRID,
    KINDS,
    LLAMA_1B,
    MOE,
    QWEN3,
    RERANKERS,
    TINYLLAMA,
    WINDOWED,
    Shape,
)
from tests.kit.tokenizers import CHATML, END, N_BYTES_VOCAB, NOT_PRINTABLE, START, TEXT_END

__all__ = [
    "CHATML",
    "DENSE",
    "DRAFT_68M",
    "EMBEDDERS",
    "END",
    "HYBRID",
    "KINDS",
    "LLAMA_1B",
    "MODELS_DIR",
    "MOE",
    "NOT_PRINTABLE",
    "N_BYTES_VOCAB",
    "PAIR",
    "Q4_K_M",
    "QWEN3",
    "RERANKERS",
    "START",
    "TEXT_END",
    "TINYLLAMA",
    "WINDOWED",
    "Shape",
    "Spec",
    "build",
    "pair",
    "tiny",
]
