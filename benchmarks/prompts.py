"""Prompts of a known length for real models."""

import random

_WORDS = "quick brown foxes jump over lazy dogs and seven wizards mix potions of jade".split()  # noqa: SIM905


def prompt(n_tokens: int, seed: int) -> str:
    """Return words that amount to about `n_tokens` tokens, including the template's."""
    draw = random.Random(seed)
    return " ".join(draw.choice(_WORDS) for _ in range(n_tokens - 35))


def long_task(n_tokens: int, seed: int) -> str:
    """Return a prompt of that length that makes most models give a long answer at most temperatures."""
    words = prompt(n_tokens, seed)
    return f"Write a long Python program of many functions that counts these words in files: {words}"
