"""A backend that looks up the next token by the last two: fast, with known probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgechat.engine.backends.base import BatchPart, CacheFull, Capabilities
from edgechat.engine.tool_calls.formats import GENERIC


class Letters:
    """A vocabulary of letters a, b, c ..., without an end token."""

    bos = eos = ""

    def __init__(self, size: int) -> None:
        self.size = size

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        """Return a token for each letter."""
        return [ord(letter) - ord("a") for letter in text]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the letter."""
        return b"abcdefghij"[token : token + 1]

    def control_texts(self) -> list[str]:
        """Return an empty list: there are no control tokens."""
        return []

    def infill(self) -> None:
        """Return None: there are no infill tokens."""

    def is_end(self, token: int) -> bool:
        """Return False."""
        return False

    def misfit(self, other: Letters) -> str:
        """Return '': all vocabularies of letters are compatible."""
        return ""


class Tables:
    """Logits [period, n, n, n] of the next token, by the position modulo `period` and the last two tokens."""

    chat_template = None
    architecture = state_format = "tables"
    n_params = touched_bytes = 0
    buffers = ()
    n_batch = n_outputs_max = 64
    checkpoint_bytes = 0
    rolls_back = 64
    rolls_back_alone = False
    adapters = None
    capabilities = Capabilities(mixes=True)
    drawing = None
    interruption = None
    media_encoder = None
    no_vision = ""
    no_head = ""

    def __init__(
        self,
        tables: np.ndarray,
        *,
        context: int = 100_000,
        n_seq_max: int = 16,
        head: np.ndarray | None = None,
    ) -> None:
        """head: the tables with which the model's own layers draft."""
        self.head = TablesHead(self, head.astype(np.float32)) if head is not None else None
        self.tables = tables.astype(np.float32)
        self.vocabulary = Letters(tables.shape[-1])
        self.context = self.train_context = context
        self.n_seq_max = n_seq_max
        self.held: list[list[int]] = [[] for _ in range(n_seq_max)]

    def decode(self, parts: Sequence[BatchPart]) -> np.ndarray:
        """See `Backend.decode`."""
        if sum(map(len, self.held)) + sum(len(part.tokens) for part in parts) > self.context:
            raise CacheFull
        period, rows = len(self.tables), []
        for part in parts:
            held = self.held[part.seq]
            assert part.start == len(held)
            held += part.tokens
            ends = range(len(held) - part.n_logits + 1, len(held) + 1)
            rows += [(end % period, held[end - 2], held[end - 1]) for end in ends]
        return self.tables[tuple(zip(*rows, strict=True))] if rows else np.empty((0, self.vocabulary.size))

    def truncate(self, seq: int, length: int) -> bool:
        """See `Backend.truncate`."""
        del self.held[seq][length:]
        return True

    def rollback(self, seq: int, count: int) -> bool:
        """See `Backend.rollback`."""
        del self.held[seq][len(self.held[seq]) - count :]
        return True

    def can_copy(self, source: int, length: int) -> bool:
        """See `Backend.can_copy`."""
        return True

    def copy(self, source: int, target: int, length: int) -> bool:
        """See `Backend.copy`."""
        self.held[target] = self.held[source][:length]
        return True

    def close(self) -> None:
        """Do nothing."""


class TablesHead:
    """A draft head that sees its model's tokens, and has its own tables."""

    kind = "mtp"
    longest = 8

    def __init__(self, model: Tables, tables: np.ndarray) -> None:
        self.tables = tables
        self._model = model
        self._drafted: dict[int, list[int]] = {}

    def can_draft(self, seq: int, length: int) -> bool:
        """See `DraftHead.can_draft`."""
        return len(self._model.held[seq]) == length

    def begin(self, tokens: Sequence[tuple[int, int]]) -> np.ndarray:
        """See `DraftHead.begin`."""
        self._drafted.clear()
        return self.extend(tokens)

    def extend(self, tokens: Sequence[tuple[int, int]]) -> np.ndarray:
        """See `DraftHead.extend`."""
        rows = []
        for seq, token in tokens:
            self._drafted.setdefault(seq, []).append(token)
            text = self._model.held[seq] + self._drafted[seq]
            rows.append(self.tables[len(text) % len(self.tables), text[-2], text[-1]])
        return np.stack(rows)


class Fixed:
    """A template that renders the same text for every request."""

    marks = None
    calls = GENERIC
    stop = ()

    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, messages: object, **options: object) -> str:
        """See `ChatTemplate.render`."""
        return self._text

    def close(self) -> None:
        """Do nothing."""
