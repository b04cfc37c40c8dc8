"""A backend that replies as a script says: for tests of everything above it, at any speed.

The script is JSON in the model file's metadata (see `tests.scripted.write`):

    {"reply": "the default reply",
     "rules": [{"when": "hello", "reply": "Hi!", "crash_after": 3}],
     "token_ms": 5, "prompt_token_ms": 0.1, "load_ms": 100}

The first rule whose `when` occurs in the last user message applies. `crash_after` kills the process with
SIGKILL after that many tokens of the reply; `nan_after` computes NaN. Tokens are bytes. The reply is
determined by the sequence's own tokens alone, so it survives preemption, prefix reuse and restarts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from edgechat.base.errors import LoadFailed
from edgechat.engine.backends.base import (
    Adapters,
    BatchPart,
    CacheFull,
    Capabilities,
    Checkpoint,
    Interruption,
    Logits,
    MediaEncoder,
    TokenDrawing,
    Vocabulary,
)
from edgechat.models.formats.gguf import read_header
from edgechat.native.params import Buffer
from edgechat.planner.plan import LoadPlan
from tests.scripted import KEY

_START, _END, _BOS = 256, 257, 258
_SPECIAL = {_START: b"<|im_start|>", _END: b"<|im_end|>", _BOS: b"<s>"}
_CERTAIN = 50.0
CHECKPOINT_BYTES = 1000


@dataclass(slots=True, eq=False)
class Cell:
    """What one token occupies in the cache."""

    token: int


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reply if the last user message contains `when`."""

    when: str
    reply: str
    crash_after: int | None = None
    nan_after: int | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a script; times are in milliseconds."""

    reply: str = "I am a script."
    rules: tuple[Rule, ...] = ()
    token_ms: float = 0.0
    prompt_token_ms: float = 0.0
    load_ms: float = 0.0
    load_error: str | None = None
    mixes: bool = True
    cuts: bool = True
    """False: only whole sequences can be copied, as with recurrent models."""
    window: int = 0
    """Size of the attention window in tokens; what is before it is lost, and cannot be returned to."""
    rewinds: int = 0
    """One in this many rewinds fails."""
    shifts: bool = False
    rolls_back: int = 16
    """How many tokens of one call can be rolled back."""
    rolls_back_alone: bool = False
    control: tuple[str, ...] = ()
    """Control tokens besides ChatML's; replies may contain them."""
    template: str | None = None
    answer_after: str = "<|im_start|>assistant\n"
    """What the template puts before an answer."""


def script_of(model_path: str) -> Script | None:
    """Return the script in a GGUF file, or None."""
    text = read_header(Path(model_path)).metadata.get(KEY)
    return msgspec.json.decode(text, type=Script) if isinstance(text, str) else None


def tokens_in(checkpoint: Checkpoint) -> list[int]:
    """Return the tokens that a checkpoint covers."""
    assert isinstance(checkpoint.state, np.ndarray)
    tokens: list[int] = checkpoint.state.view(np.int32).tolist()
    return tokens


class ScriptedVocabulary:
    """A vocabulary of bytes, three control tokens, and any more that a test wants."""

    bos = "<s>"
    eos = "<|im_end|>"

    def __init__(self, control: Sequence[str] = ()) -> None:
        self._more = {_BOS + 1 + at: mark.encode() for at, mark in enumerate(control)}
        self._special = _SPECIAL | self._more

    @property
    def size(self) -> int:
        """See `Vocabulary.size`."""
        return 256 + len(self._special)

    def script(self, text: str) -> list[int]:
        """Return a reply's tokens; ChatML's marks in it are plain text."""
        return self._tokens(text.encode(), self._more)

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        """See `Vocabulary.tokenize`."""
        return [_BOS] * bos + self._tokens(text.encode(), self._special if special else {})

    def _tokens(self, raw: bytes, marks: Mapping[int, bytes]) -> list[int]:
        if not marks:
            return list(raw)
        tokens: list[int] = []
        at = 0
        while at < len(raw):
            found = next((one for one, mark in marks.items() if raw.startswith(mark, at)), None)
            tokens.append(raw[at] if found is None else found)
            at += 1 if found is None else len(marks[found])
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """See `Vocabulary.piece`."""
        return bytes([token]) if token < 256 else self._special[token] if special else b""

    def control_texts(self) -> list[str]:
        """See `Vocabulary.control_texts`."""
        return [mark.decode() for mark in self._special.values()]

    def is_end(self, token: int) -> bool:
        """See `Vocabulary.is_end`."""
        return token == _END

    def infill(self) -> tuple[int, int, int] | None:
        """See `Vocabulary.infill`."""
        named = {mark: token for token, mark in self._more.items()}
        marks = [named.get(b"<|fim_%s|>" % part) for part in (b"prefix", b"suffix", b"middle")]
        prefix, suffix, middle = marks
        return None if prefix is None or suffix is None or middle is None else (prefix, suffix, middle)

    def misfit(self, other: ScriptedVocabulary) -> str:
        """See `Vocabulary.misfit`."""
        return ""


class ScriptedBackend:
    """Computes logits that leave no choice."""

    def __init__(self, plan: LoadPlan, on_progress: Callable[[float], None] | None = None) -> None:
        """Read the script. Raises LoadFailed if it says so."""
        self._script = script_of(plan.model_path) or Script()
        for step in range(1, 11):
            time.sleep(self._script.load_ms / 10_000)
            if on_progress is not None:
                on_progress(step / 10)
        if self._script.load_error:
            raise LoadFailed(self._script.load_error)
        self.drawing: TokenDrawing | None = None
        self.interruption: Interruption | None = None
        self.adapters: Adapters | None = None
        self.media_encoder: MediaEncoder | None = None
        self.no_vision = ""
        self.head = None
        self.no_head = ""
        self.capabilities = Capabilities(
            mixes=self._script.mixes,
            cuts=self._script.cuts and not self._script.window,
            shifts=self._script.shifts,
            saves=True,
        )
        self.state_format = "scripted"
        self.vocabulary: Vocabulary = (words := ScriptedVocabulary(self._script.control))
        self._reply = cache(words.script)
        self._header = words.tokenize(self._script.answer_after, bos=False, special=True)
        self.context = plan.context
        self.n_seq_max = plan.n_seq_max
        self.n_batch = plan.n_batch
        self.n_outputs_max = plan.n_outputs_max or plan.n_batch
        self.rolls_back, self.rolls_back_alone = self._script.rolls_back, self._script.rolls_back_alone
        self.checkpoint_bytes = 0 if self.capabilities.cuts else plan.checkpoint_bytes
        self._computed: dict[int, int] = {}
        self.chat_template = self._script.template
        self.architecture = "scripted"
        self.n_params = 0
        self.buffers: tuple[Buffer, ...] = ()
        self.touched_bytes = 0
        self.train_context = plan.context
        self._cache: dict[int, list[Cell]] = {}
        self._n_rewinds = 0

    def decode(self, parts: Sequence[BatchPart]) -> Logits:
        """See `Backend.decode`."""
        if len({part.seq for part in parts}) > 1 and not self.capabilities.mixes:
            raise ValueError("this script cannot mix sequences in a batch")
        n_tokens = sum(len(part.tokens) for part in parts)
        if self.cells_used + n_tokens > self.context:
            raise CacheFull
        if sum(part.n_logits for part in parts) > self.n_outputs_max:
            raise ValueError("too many rows of logits are asked for")
        rows = []
        alone = len(parts) == 1 or not self.rolls_back_alone
        self._computed = {part.seq: len(part.tokens) for part in parts if alone}
        for part in parts:
            held = self._cache.setdefault(part.seq, [])
            if part.start != len(held):
                raise ValueError(f"sequence {part.seq} has {len(held)} tokens, not {part.start}")
            for at, token in enumerate(part.tokens):
                held.append(Cell(token))
                if at >= len(part.tokens) - part.n_logits:
                    rows.append(self._row([cell.token for cell in held]))
        self._take_time(parts)
        return np.array(rows, np.float32).reshape(len(rows), self.vocabulary.size)

    def _take_time(self, parts: Sequence[BatchPart]) -> None:
        streams = [part for part in parts if len(part.tokens) == 1 or part.n_logits > 1]  # or drafts
        prompt = sum(len(part.tokens) for part in parts if part not in streams)
        step = self._script.token_ms * bool(streams)
        time.sleep((step + self._script.prompt_token_ms * prompt) / 1000)

    def _row(self, tokens: list[int]) -> Logits:
        row = np.zeros(self.vocabulary.size, np.float32)
        header, start = self._header, max(0, len(tokens) - len(self._header))
        while start > 0 and (tokens[start] != header[0] or tokens[start : start + len(header)] != header):
            start -= 1
        answer_at = start + len(header)
        rule = self._rule(tokens[:start])
        reply = self._reply(rule.reply)
        at = len(tokens) - answer_at
        if at == rule.crash_after:
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        row[reply[at] if 0 <= at < len(reply) else _END] = np.nan if at == rule.nan_after else _CERTAIN
        return row

    def _rule(self, tokens: list[int]) -> Rule:
        role = [_START, *b"user"]
        at = len(tokens) - 1
        while at >= 0 and (tokens[at] != _START or tokens[at : at + 5] != role):
            at -= 1
        last = bytes(token for token in tokens[at:] if token < 256) if at >= 0 else b""
        text = last.decode("utf-8", "replace")
        default = Rule("", self._script.reply)
        return next((rule for rule in self._script.rules if rule.when in text), default)

    @property
    def cells_used(self) -> int:
        """Cells in use; shared ones count once."""
        return len(set(map(id, chain.from_iterable(self._cache.values()))))

    def tokens_of(self, seq: int) -> list[int]:
        """Return the tokens in a sequence."""
        return [cell.token for cell in self._cache.get(seq, [])]

    def truncate(self, seq: int, length: int) -> bool:
        """See `Backend.truncate`."""
        held = self._cache.setdefault(seq, [])
        if length and length < len(held) and not self._can_cut(held):
            return False
        del held[length:]
        return True

    def rollback(self, seq: int, count: int) -> bool:
        """See `Backend.rollback`."""
        if count >= self._computed.get(seq, 0):
            raise ValueError(f"{count} tokens were not computed in the last call")
        if count > self.rolls_back:
            return False
        self._computed[seq] = 0
        held = self._cache[seq]
        del held[len(held) - count :]
        return True

    def _can_cut(self, held: list[Cell]) -> bool:
        # A full window that holds the last tokens cannot go back even by one.
        return self._script.cuts and (not self._script.window or len(held) <= self._script.window)

    def save_checkpoint(self, checkpoint: Checkpoint) -> npt.NDArray[np.uint8]:
        """See `Backend.save_checkpoint`."""
        assert isinstance(checkpoint.state, np.ndarray)
        return checkpoint.state

    def can_copy(self, source: int, length: int) -> bool:
        """See `Backend.can_copy`."""
        held = self._cache.get(source, [])
        return length == len(held) or self._can_cut(held)

    def checkpoint(self, seq: int) -> Checkpoint:
        """See `Backend.checkpoint`."""
        return Checkpoint(len(self.tokens_of(seq)), CHECKPOINT_BYTES, self.save(seq))

    def rewind(self, seq: int, checkpoint: Checkpoint) -> bool:
        """See `Backend.rewind`."""
        held = self._cache[seq]
        if self.tokens_of(seq)[: checkpoint.length] != tokens_in(checkpoint):
            raise ValueError(f"the checkpoint is of other tokens than sequence {seq} begins with")
        self._n_rewinds += 1
        lost = self._script.rewinds and self._n_rewinds % self._script.rewinds == 0
        del held[0 if lost else checkpoint.length :]
        self._computed[seq] = 0
        return not lost

    def copy(self, source: int, target: int, length: int) -> bool:
        """See `Backend.copy`."""
        if self._cache.get(target):
            raise ValueError(f"sequence {target} is not empty")
        if not self.can_copy(source, length):
            raise ValueError(f"{length} tokens of sequence {source} cannot be copied")
        self._cache[target] = self._cache[source][:length]
        return True

    def shift(self, seq: int, start: int, stop: int) -> bool:
        """See `Backend.shift`."""
        held = self._cache[seq]
        if not 0 < start < stop < len(held):
            raise ValueError(f"tokens {start} to {stop} are not in the middle of {len(held)}")
        if not self._script.shifts:
            return False
        others = {id(cell) for other, cells in self._cache.items() if other != seq for cell in cells}
        if any(id(cell) in others for cell in held[stop:]):
            raise ValueError("cells that are moved are another sequence's too")
        del held[start:stop]
        return True

    def save(self, seq: int) -> npt.NDArray[np.uint8]:
        """See `Backend.save`."""
        return np.array(self.tokens_of(seq), np.int32).view(np.uint8)

    def restore(self, seq: int, state: npt.NDArray[np.uint8], tokens: Sequence[int]) -> bool:
        """See `Backend.restore`."""
        if state.view(np.int32).tolist() != list(tokens) or self.cells_used + len(tokens) > self.context:
            return False
        self._cache[seq] = [Cell(token) for token in tokens]
        return True

    def close(self) -> None:
        """Do nothing."""
