"""How many tokens a text has, guessed without the model's vocabulary, which only the worker has."""

from __future__ import annotations

BYTES_PER_TOKEN = 4


def guessed_tokens(n_bytes: int) -> int:
    """Return about how many tokens a text of so many bytes has."""
    return -(-n_bytes // BYTES_PER_TOKEN)
