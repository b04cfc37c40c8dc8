"""Tokenizers for the kit's models: one of bytes, and copies of real ones.

In the byte tokenizer the id of a byte is its value: any text becomes its UTF-8 bytes and comes back exactly.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gguf
from gguf import GGUFValueType as Value

START, END, TEXT_END = 256, 257, 258
"""Ids of <|im_start|>, <|im_end|> and <|endoftext|> in the byte tokenizer; the last two end a generation."""
N_BYTES_VOCAB = 259

NOT_PRINTABLE = (*range(10), *range(11, 32), *range(127, 256), START, END, TEXT_END)
"""Ids to mute for an endless text of printable ASCII and newlines."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

KeyValue = tuple[str, Any, Value, Value | None]
"""Key, value, its type, and the type of an array's elements."""

_NORMAL, _CONTROL = 1, 3


@cache
def byte_pieces() -> tuple[str, ...]:
    """Return GPT-2's name of every byte: printable ones stand for themselves, the rest move up past 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return tuple(chr(b) if b in printable else chr(next(spare)) for b in range(256))


def _filler(i: int) -> str:
    """Return a word that no text tokenises to, though it reads as one: ' baba', ' babe', ..."""
    word = ""
    while True:
        i, a = divmod(i, 20)
        i, b = divmod(i, 5)
        word = "bcdfghjklmnpqrstvwxz"[a] + "aeiou"[b] + word
        if i == 0:
            return "Ġ" + word


def byte_tokenizer(n_vocab: int = N_BYTES_VOCAB) -> list[KeyValue]:
    """Return the metadata of the byte tokenizer, padded with words to `n_vocab` tokens."""
    n_fill = max(0, n_vocab - N_BYTES_VOCAB)
    tokens = [*byte_pieces(), "<|im_start|>", "<|im_end|>", "<|endoftext|>", *map(_filler, range(n_fill))]
    types = [_NORMAL] * 256 + [_CONTROL] * 3 + [_NORMAL] * n_fill
    return [
        ("tokenizer.ggml.model", "gpt2", Value.STRING, None),
        ("tokenizer.ggml.pre", "gpt-2", Value.STRING, None),
        ("tokenizer.ggml.tokens", tokens, Value.ARRAY, Value.STRING),
        ("tokenizer.ggml.token_type", types, Value.ARRAY, Value.INT32),
        # A merge that never applies: llama.cpp insists on having some.
        ("tokenizer.ggml.merges", ["<|im_start|> <|im_end|>"], Value.ARRAY, Value.STRING),
        ("tokenizer.ggml.bos_token_id", TEXT_END, Value.UINT32, None),
        ("tokenizer.ggml.eos_token_id", END, Value.UINT32, None),
        ("tokenizer.ggml.padding_token_id", TEXT_END, Value.UINT32, None),
        ("tokenizer.ggml.add_bos_token", False, Value.BOOL, None),
    ]


def copied_tokenizer(path: Path) -> list[KeyValue]:
    """Return the tokenizer's metadata of an existing GGUF, its chat template among it."""
    found: list[KeyValue] = []
    for key, field in gguf.GGUFReader(path).fields.items():
        if key.startswith("tokenizer."):
            array = field.types[0] == Value.ARRAY
            found.append((key, field.contents(), field.types[0], field.types[-1] if array else None))
    return found


def n_tokens(tokenizer: list[KeyValue]) -> int:
    """Return the size of a tokenizer's vocabulary."""
    return next(len(value) for key, value, *_ in tokenizer if key == "tokenizer.ggml.tokens")
