"""Draft heads: layers that draft from a model's hidden states (MTP, EAGLE-3).

A head needs the hidden state after every token, but need not read it right after each call. Hidden states are
collected here until there are many of them or a draft is needed. To make a draft, the head reads them in the
same call as the token to draft from.
"""

# ruff: noqa: D102  (base.py documents the methods of its protocols)

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from edgechat.base.errors import DecodeFailed, LoadFailed
from edgechat.engine.backends.base import BatchPart, CacheFull, Logits
from edgechat.native.handles import Context, Model
from edgechat.native.heads import AssistantContext, EagleContext, HeadContext, Rows
from edgechat.planner.plan import DraftPlan, LoadPlan

_MOST_UNREAD = 32
"""Maximum number of unread tokens. Drafts are shorter, so their tokens can stay unread until accepted."""
_LONGEST = 8


@dataclass(slots=True)
class _ReadSequence:
    """A head's progress through a sequence."""

    states: Rows
    """Hidden states before each unread token and after the last one [len(unread) + 1, width]."""
    n_read: int = 0
    """Number of tokens in the head's cache."""
    unread: list[int] = field(default_factory=list)
    """The tokens that come next, which the head has not read yet."""
    is_ahead: bool = False
    """Whether the cache also contains a draft."""
    stopped: bool = False
    """Whether the sequence continues with something that the head cannot read."""

    @property
    def length(self) -> int:
        """Number of tokens with known hidden states."""
        return self.n_read + len(self.unread)


class LlamaCppHead:
    """The draft head of a llama.cpp model, with its state for each sequence."""

    def __init__(self, context: HeadContext) -> None:
        self.kind: Literal["mtp", "eagle3"] = context.kind
        self._context = context
        # Each layer predicts one token further than the previous layer.
        self._is_chained = context.n_layers > 1
        self._reads_together = context.hands_out_all and not self._is_chained
        self.longest = context.n_layers if self._is_chained else _LONGEST
        self._readings: dict[int, _ReadSequence] = {}
        self._drafts: dict[int, tuple[list[int], Rows]] = {}
        self._rows: dict[int, int] = {}

    def _reading(self, seq: int) -> _ReadSequence:
        if seq not in self._readings:
            # Zeros stand in for the hidden state before a sequence's first token.
            self._readings[seq] = _ReadSequence(np.zeros((1, self._context.width), np.float32))
        return self._readings[seq]

    # Calls to the model.

    def computed(self, parts: Sequence[BatchPart]) -> None:
        """Collect the hidden states from the model's last call, which computed these parts."""
        states = self._context.target_states(sum(len(part.tokens) for part in parts))
        at = 0
        for part in parts:
            self._take(part.seq, part.start, part.tokens, states[at : at + len(part.tokens)])
            at += len(part.tokens)

    def missed(self, seq: int, start: int, tokens: Sequence[int]) -> None:
        """Add tokens that the model computed without providing hidden states."""
        self._take(seq, start, tokens, np.zeros((len(tokens), self._context.width), np.float32))

    def _take(self, seq: int, start: int, tokens: Sequence[int], states: Rows) -> None:
        reading = self._reading(seq)
        reading.stopped = reading.stopped or start != reading.length
        if reading.stopped:
            return
        if len(reading.unread) + len(tokens) > _MOST_UNREAD:
            self._read(seq)
        reading.unread += tokens
        reading.states = np.concatenate((reading.states, states))
        if len(reading.unread) > _MOST_UNREAD:
            self._read(seq)

    def _read(self, seq: int) -> None:
        reading = self._reading(seq)
        self._retract([seq])
        size = self._context.n_batch
        for at in range(0, len(reading.unread), size):
            tokens = reading.unread[at : at + size]
            states = reading.states[at : at + len(tokens)]
            if not self._read_part(seq, reading.n_read + at, tokens, states):
                self._context.remove(seq, reading.n_read)
                self.stop(seq)
                return
        self._note_read(reading)

    def _read_part(self, seq: int, start: int, tokens: list[int], states: Rows) -> bool:
        """Read tokens with every layer. Return False if this fails or they do not fit even without drafts."""
        run = (seq, start, tokens, 0)
        try:
            for layer in range(self._context.n_layers if self._is_chained else 1):
                if self._is_chained:
                    self._context.remove(seq, start)
                    self._context.choose_layer(layer)
                if self._context.read([run], states) is None:
                    self._retract(self._readings)
                    if self._context.read([run], states) is None:
                        return False
        except DecodeFailed:
            return False
        return True

    def _note_read(self, reading: _ReadSequence) -> None:
        reading.n_read, reading.unread, reading.states = reading.length, [], reading.states[-1:].copy()

    def stop(self, seq: int) -> None:
        """Stop reading a sequence, for example at media, until it is cut back to the part already read."""
        self._reading(seq).stopped = True

    # Changes to sequences.

    def truncate(self, seq: int, length: int) -> None:
        reading = self._reading(seq)
        self._retract([seq])
        if length > reading.length:
            return
        reading.stopped = False
        n = length - reading.n_read
        if n >= 0:
            reading.unread, reading.states = reading.unread[:n], reading.states[: n + 1]
            return
        self._context.remove(seq, length)
        # Hidden states within a sequence are not stored, so one token is read with zeros instead.
        reading.n_read, reading.unread = length, []
        reading.states = np.zeros((1, self._context.width), np.float32)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the state of the first `length` tokens, if `source` has read them."""
        self.truncate(target, 0)
        reading, copied = self._reading(source), self._reading(target)
        self._retract([source])
        if length > reading.length:
            copied.stopped = True
            return
        copied.n_read = min(reading.n_read, length)
        if copied.n_read:
            self._context.copy(source, target, copied.n_read)
        n = length - reading.n_read
        if n >= 0:
            copied.unread, copied.states = reading.unread[:n], reading.states[: n + 1].copy()

    def shift(self, seq: int, start: int, stop: int) -> None:
        """Remove the tokens from `start` to `stop` from the middle of a sequence."""
        self._read(seq)
        reading = self._reading(seq)
        if reading.stopped or not self._context.can_shift or not self._context.shift(seq, start, stop):
            self.stop(seq)
            return
        reading.n_read -= stop - start

    def save(self, seq: int) -> npt.NDArray[np.uint8]:
        """Return the head's state for a sequence, or an empty array if the head has stopped reading it."""
        self._read(seq)
        reading = self._reading(seq)
        if reading.stopped:
            return np.empty(0, np.uint8)
        return np.concatenate((reading.states[0].view(np.uint8), self._context.state(seq)))

    def restore(self, seq: int, state: npt.NDArray[np.uint8], length: int) -> None:
        """Restore the head's state for a sequence of `length` tokens from the result of `save`."""
        self.truncate(seq, 0)
        reading, size = self._reading(seq), 4 * self._context.width
        restored = (
            len(state) >= size
            and self._context.set_state(seq, state[size:])
            and self._context.last_position(seq) == length - 1
        )
        if not restored:
            self._context.remove(seq, 0)
            self.stop(seq)
            return
        reading.n_read, reading.states = length, state[:size].view(np.float32).reshape(1, -1).copy()

    def _retract(self, seqs: Iterable[int]) -> None:
        """Remove drafts from the head's cache."""
        for seq in seqs:
            reading = self._reading(seq)
            if reading.is_ahead:
                self._context.remove(seq, reading.n_read)
                reading.is_ahead = False

    # Drafting.

    def can_draft(self, seq: int, length: int) -> bool:
        reading = self._reading(seq)
        # There is no hidden state before the first token.
        return not reading.stopped and reading.length == length > 0

    def begin(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        self._retract([seq for seq, _ in tokens])
        runs, states = [], []
        n_unread = sum(len(self._reading(seq).unread) for seq, _ in tokens)
        for seq, token in tokens:
            if not self._reads_together or n_unread + len(tokens) > self._context.n_batch:
                self._read(seq)
            reading = self._reading(seq)
            runs.append((seq, reading.n_read, [*reading.unread, token], 1))
            states.append(reading.states)
        logits = self._draft(runs, np.concatenate(states), layer=0)
        self._drafts.clear()
        for seq, token in tokens:
            reading = self._reading(seq)
            self._note_read(reading)
            reading.is_ahead = True
            self._drafts[seq] = [token], reading.states
        return logits

    def extend(self, tokens: Sequence[tuple[int, int]]) -> Logits:
        own = self._context.own_states()
        runs, states = [], []
        for seq, token in tokens:
            drafted, before = self._drafts[seq]
            drafted.append(token)
            self._drafts[seq] = drafted, np.concatenate((before, own[self._rows[seq], None]))
            start = self._reading(seq).n_read
            if self._is_chained:  # another layer's cache is of no use to this layer
                self._context.remove(seq, start)
                runs.append((seq, start, drafted, 1))
                states.append(self._drafts[seq][1])
            else:
                position = start if self._context.stays else start + len(drafted) - 1
                runs.append((seq, position, [token], 1))
                states.append(self._drafts[seq][1][-1:])
        layer = len(self._drafts[tokens[0][0]][0]) - 1
        return self._draft(runs, np.concatenate(states), layer)

    def _draft(self, runs: list[tuple[int, int, list[int], int]], states: Rows, layer: int) -> Logits:
        if self._is_chained:
            self._context.choose_layer(layer)
        logits = self._context.read(runs, states)
        if logits is None:
            raise CacheFull
        self._rows = {run[0]: row for row, run in enumerate(runs)}
        return logits


def open_head(plan: LoadPlan, model: Model, target: Context) -> tuple[HeadContext, Callable[[], None]] | None:
    """Open the plan's draft head and return its context and a function that closes it.

    The head is either part of the model or in a separate file. Close it before the target. Returns None if
    the plan has no draft head. Raises LoadFailed.
    """
    if plan.mtp:
        context = HeadContext(model, plan, target)
        return context, context.close
    if plan.draft is None or plan.draft.kind == "model":
        return None
    with ExitStack() as stack:
        layers = Model(Path(plan.draft.model_path), plan.draft)
        stack.callback(layers.close)
        context = _context_of(layers, plan.draft, model, target)
        stack.callback(context.close)
        return context, stack.pop_all().close


def _context_of(layers: Model, draft: DraftPlan, model: Model, target: Context) -> HeadContext:
    if draft.kind == "eagle3":
        return EagleContext(layers, draft, model, target)
    if layers.architecture == "gemma4-assistant":
        return AssistantContext(layers, draft, model, target)
    if layers.architecture != model.architecture:
        raise LoadFailed(
            f"Layers of {layers.architecture} models cannot draft for {model.architecture} models."
        )
    return HeadContext(layers, draft, target)
