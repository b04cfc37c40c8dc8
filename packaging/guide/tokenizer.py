"""Byte-level BPE as in GPT-2, which llama.cpp calls `gpt-2`.

The tokenizers library trains it. Encoding is implemented here, because training needs BPE-dropout from a
seeded generator: some merges are left out at random, so that the model also sees words in pieces, as it will
when someone makes a typo.
"""

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import gguf
import tokenizers
from corpus import Conversation
from tokenizers import models, pre_tokenizers, trainers

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, START, END)

# Turns a chat into text. `render` below must match it exactly.
CHAT_TEMPLATE = (  # no system prompts: the guide ignores them, and some misled it
    "{% for message in messages if message['role'] != 'system' %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


class Tokenizer:
    """Encodes text, but does not decode it; ids 0 to 2 are the special tokens."""

    def __init__(self, tokens: list[str], merges: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.merges = merges
        self._ids = {token: at for at, token in enumerate(tokens)}
        self._ranks = {pair: at for at, pair in enumerate(merges)}
        self._known: dict[str, list[int]] = {}

    @classmethod
    def train(cls, texts: Iterable[str], vocab: int) -> "Tokenizer":
        """Learn the merges from texts. The same texts always produce the same merges."""
        bpe = tokenizers.Tokenizer(models.BPE())
        bpe.pre_tokenizer = _split
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        bpe.train_from_iterator(texts, trainer)
        state = json.loads(bpe.to_str())["model"]
        tokens = sorted(state["vocab"], key=state["vocab"].__getitem__)
        if len(tokens) != vocab:
            raise ValueError(f"the corpus gives {len(tokens)} tokens, not {vocab}")
        return cls(tokens, [(left, right) for left, right in state["merges"]])

    def save(self, path: Path) -> None:
        """Write tokens and merges as JSON."""
        path.write_text(json.dumps({"tokens": self.tokens, "merges": self.merges}), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a file written by `save`."""
        state = json.loads(path.read_text(encoding="utf-8"))
        return cls(state["tokens"], [tuple(pair) for pair in state["merges"]])

    @classmethod
    def of_gguf(cls, path: Path) -> "Tokenizer":
        """Read the tokenizer of an exported model, to train another model with the same tokens."""
        fields = gguf.GGUFReader(path).fields
        tokens, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges"))
        return cls(tokens, [tuple(pair.split(" ")) for pair in merges])

    def encode(self, text: str, dropout: float = 0.0, rng: random.Random | None = None) -> list[int]:
        """Return the ids for a text; `dropout` is the chance of skipping a merge (Provilkov et al., 2020)."""
        ids: list[int] = []
        for piece, _ in _split.pre_tokenize_str(text):
            if dropout:
                ids += self._merge(piece, dropout, rng)
            else:
                if piece not in self._known:
                    self._known[piece] = self._merge(piece, 0.0, None)
                ids += self._known[piece]
        return ids

    def _merge(self, piece: str, dropout: float, rng: random.Random | None) -> list[int]:
        parts = list(piece)
        while True:
            ranked = [
                (self._ranks[pair], at)
                for at, pair in enumerate(pairwise(parts))
                if pair in self._ranks and not (dropout and rng.random() < dropout)
            ]
            if not ranked:
                return [self._ids[part] for part in parts]
            _, at = min(ranked)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    def special(self, token: str) -> int:
        """Return the id of a special token."""
        return self._ids[token]

    def render(
        self, chat: Conversation, dropout: float = 0.0, rng: random.Random | None = None
    ) -> tuple[list[int], list[bool]]:
        """Return a conversation's ids and, for each, whether the guide generates it: words and end tokens."""
        ids: list[int] = []
        own: list[bool] = []

        def add(text: str, learn: bool, rough: float = 0.0) -> None:
            part = self.encode(text, rough, rng)
            ids.extend(part)
            own.extend([learn] * len(part))

        def mark(token: str, learn: bool) -> None:
            ids.append(self._ids[token])
            own.append(learn)

        def heard(role: str, text: str) -> None:
            mark(START, learn=False)
            add(f"{role}\n{text}", learn=False, rough=dropout if dropout and rng.random() < 0.5 else 0.0)
            mark(END, learn=False)
            add("\n", learn=False)

        for turn in chat.turns:
            heard("user", turn.ask)
            mark(START, learn=False)
            add("assistant\n", learn=False)
            add(turn.answer, learn=True)
            mark(END, learn=True)
            add("\n", learn=False)
        return ids, own


def as_text(chat: Conversation) -> str:
    """Return a conversation as the chat template renders it."""
    said = [one for turn in chat.turns for one in (("user", turn.ask), ("assistant", turn.answer))]
    return "".join(f"{START}{role}\n{text}{END}\n" for role, text in said)
