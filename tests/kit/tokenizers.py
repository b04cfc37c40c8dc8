"""Tokenizers for the kit's models: one of bytes, one of pieces, and copies of real ones.

In the byte tokenizer, a byte's id is its value: any text becomes its UTF-8 bytes, and is restored exactly.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

from gguf import GGUFValueType as Value

START, END, TEXT_END = 256, 257, 258
"""Ids of <|im_start|>, <|im_end|> and <|endoftext|> in the byte tokenizer; the last two end generation."""
N_BYTES_VOCAB = 259

NOT_PRINTABLE = (*range(10), *range(11, 32), *range(127, 256), START, END, TEXT_END)
"""Ids to mute for endless text of printable ASCII and newlines."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

RERANK = (
    "<|im_start|>system\nJudge: yes or no.<|im_end|>\n<|im_start|>user\n<Query>: {query}\n"
    "<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
)
"""A reranking model's template, as in Qwen3-Reranker."""

KeyValue = tuple[str, Any, Value, Value | None]
"""Key, value, its type, and the type of array elements."""

_NORMAL, _UNKNOWN, CONTROL, _BYTE = 1, 2, 3, 6
_CODES = dict(zip(map(Value, (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)), "BbHhIif?Qqd", strict=True))


@cache
def byte_pieces() -> tuple[str, ...]:
    """Return GPT-2's names for all bytes: printable ones stand for themselves, others are moved above 255."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return tuple(chr(b) if b in printable else chr(next(spare)) for b in range(256))


def _filler(i: int) -> str:
    """Return a word that no text is tokenized to, though it looks like one: ' baba', ' babe', ..."""
    word = ""
    while True:
        i, a = divmod(i, 20)
        i, b = divmod(i, 5)
        word = "bcdfghjklmnpqrstvwxz"[a] + "aeiou"[b] + word
        if i == 0:
            return "Ġ" + word


def byte_tokenizer(n_vocab: int = N_BYTES_VOCAB) -> list[KeyValue]:
    """Return the byte tokenizer's metadata, padded with words to `n_vocab` tokens."""
    n_fill = max(0, n_vocab - N_BYTES_VOCAB)
    tokens = [*byte_pieces(), "<|im_start|>", "<|im_end|>", "<|endoftext|>", *map(_filler, range(n_fill))]
    types = [_NORMAL] * 256 + [CONTROL] * 3 + [_NORMAL] * n_fill
    return [
        ("tokenizer.ggml.model", "gpt2", Value.STRING, None),
        ("tokenizer.ggml.pre", "gpt-2", Value.STRING, None),
        ("tokenizer.ggml.tokens", tokens, Value.ARRAY, Value.STRING),
        ("tokenizer.ggml.token_type", types, Value.ARRAY, Value.INT32),
        # A merge that never applies: llama.cpp requires at least one.
        ("tokenizer.ggml.merges", ["<|im_start|> <|im_end|>"], Value.ARRAY, Value.STRING),
        ("tokenizer.ggml.bos_token_id", TEXT_END, Value.UINT32, None),
        ("tokenizer.ggml.eos_token_id", END, Value.UINT32, None),
        ("tokenizer.ggml.padding_token_id", TEXT_END, Value.UINT32, None),
        ("tokenizer.ggml.add_bos_token", False, Value.BOOL, None),
    ]


PIECES = ("▁t", "th", "▁th", "the", "▁the", "in", "an", "er", "on", "▁a", "and", "▁and", "▁▁", "in▁", "ing")
"""What the piece tokenizer knows besides single characters, most frequent first."""


@cache
def piece_tokens() -> tuple[str, ...]:
    """Return the piece tokenizer's tokens: <s> and </s> are 1 and 2, bytes are 3 to 258."""
    single = ("▁", *(chr(code) for code in range(33, 127)), "é", "ü", "世")
    marks = ("<|im_start|>", "<|im_end|>")
    return ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *marks, *PIECES, *single)


def piece_tokenizer() -> list[KeyValue]:
    """Return the piece tokenizer's metadata."""
    tokens = list(piece_tokens())
    n_rest = len(tokens) - 261
    types = [_UNKNOWN, CONTROL, CONTROL, *[_BYTE] * 256, CONTROL, CONTROL, *[_NORMAL] * n_rest]
    scores = [*[0.0] * 261, *(-float(rank) for rank in range(n_rest))]
    return [
        ("tokenizer.ggml.model", "llama", Value.STRING, None),
        ("tokenizer.ggml.tokens", tokens, Value.ARRAY, Value.STRING),
        ("tokenizer.ggml.scores", scores, Value.ARRAY, Value.FLOAT32),
        ("tokenizer.ggml.token_type", types, Value.ARRAY, Value.INT32),
        ("tokenizer.ggml.bos_token_id", 1, Value.UINT32, None),
        ("tokenizer.ggml.eos_token_id", 2, Value.UINT32, None),
        ("tokenizer.ggml.unknown_token_id", 0, Value.UINT32, None),
        ("tokenizer.ggml.add_bos_token", True, Value.BOOL, None),
        ("tokenizer.ggml.add_space_prefix", True, Value.BOOL, None),
    ]


def copied_tokenizer(path: Path) -> list[KeyValue]:
    """Return the tokenizer metadata in an existing GGUF, including its chat template.

    Parses the bytes itself, without checks: gguf's own reader takes a minute for the largest vocabularies.
    """
    walk = _Walk(path.read_bytes())
    entries = [walk.entry() for _ in range(walk.n_entries)]
    return [entry for entry in entries if entry[0].startswith("tokenizer.")]


class _Walk:
    """A position in the metadata of a valid file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 16
        (self.n_entries,) = self.numbers("Q")

    def numbers(self, code: str, n: int = 1) -> tuple[Any, ...]:
        """Return n numbers in a format of `struct`."""
        form = struct.Struct(f"<{n}{code}")
        self.at += form.size
        return form.unpack_from(self.data, self.at - form.size)

    def string(self) -> bytes:
        """Return a string, undecoded."""
        (n,) = self.numbers("Q")
        self.at += n
        return self.data[self.at - n : self.at]

    def entry(self) -> KeyValue:
        """Return the next entry."""
        key = self.string().decode()
        kind = Value(self.numbers("I")[0])
        if kind is Value.STRING:
            return key, self.string(), kind, None
        if kind is not Value.ARRAY:
            return key, self.numbers(_CODES[kind])[0], kind, None
        sub, n = Value(self.numbers("I")[0]), self.numbers("Q")[0]
        if sub is Value.STRING:
            return key, [self.string() for _ in range(n)], kind, sub
        return key, list(self.numbers(_CODES[sub], n)), kind, sub


def n_tokens(tokenizer: list[KeyValue]) -> int:
    """Return the size of a tokenizer's vocabulary."""
    return next(len(value) for key, value, *_ in tokenizer if key == "tokenizer.ggml.tokens")
