"""Calibration: corrects predictions with the measured speed and memory use of earlier loads.

The measurements are stored in the cache folder, together with the token counts of chat turns. These counts
guide decisions that depend on how much a chat reads and writes.

After each answer, the worker records how long it took relative to the forecast (`speed.py`), unless something
slowed the machine down (`device/load.py`). After each load, it records how much more memory its process uses
than planned.

A speed is estimated from several runs, using a quantile on the fast side of the median, because unnoticed
disturbances only make runs slower. Outliers and old runs carry little weight. Runs of the same model take
precedence. Runs of other models count only to the extent that they agree, and only if there are several such
models. If the file is damaged, calibration starts from scratch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.device import mlx
from edgechat.models.formats.header import Format

_FILE = "learned.json"
_FORMAT = 5
"""Format version. It is also incremented when the forecast changes, as runs are stored relative to it."""
_MAX_RUNS = 16
_MIN_RUNS, _MIN_WEIGHT = 3, 1.5
"""Minimum number of runs for an estimate, and their minimum total weight."""
_MIN_TURNS, _DEEPEST = 16, 1 << 24
"""Minimum number of turns for judging how chats are used, and the highest plausible number of tokens."""
_MODELS = 2
"""Minimum number of other models for their runs to be taken into account."""
_HALF_LIFE = 60 * 86400.0
"""Time after which the weight of a run has halved, in seconds."""
_QUANTILE = 0.35
_NEAR = math.log(1.15)
"""Spread of runs on an idle machine, as a logarithm.

Runs that deviate by more than three times this spread count less.
"""
_MAX_HISTORIES = 64
_MIN_FACTOR, _MAX_FACTOR = 1e-3, 1e3
_MAX_BEYOND = 1 << 38
_MAX_FILE_BYTES = 1 << 20
"""Maximum size of the file, ten times what edgechat writes."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Actual times as multiples of the forecast, and what they are based on."""

    decode: float = 1.0
    prefill: float = 1.0
    basis: str = "a first estimate from this machine's speed, which the first answers will correct"


class RunConditions(msgspec.Struct, frozen=True, order=True):
    """The conditions that a run's speed depends on."""

    machine: str
    """The CPU and its number of threads."""
    build: str
    """The version of llama.cpp or MLX."""
    backend: str
    """The devices that hold layers: 'CPU', 'CUDA', 'CPU+CUDA', 'MLX'."""
    architecture: str
    quant: str
    model: str = ""


class RunRecord(msgspec.Struct, frozen=True, array_like=True):
    """How long a run took compared with the forecast."""

    factor: float
    """Actual seconds divided by forecast seconds."""
    when: float
    """Time of the run, in seconds since 1970."""
    weight: float = 1.0
    """Weight of the run, below 1 if it is less reliable."""


class ChatUse(msgspec.Struct, frozen=True, array_like=True):
    """Tokens computed in one chat turn, or in several turns taken together."""

    read: int
    """Number of prompt tokens that were not in the cache."""
    written: int
    depth: int
    """Average number of tokens that precede the computed ones."""
    beside: int = 0
    """Number of tokens that other requests had in the cache at the time."""


USUAL = ChatUse(read=600, written=300, depth=2000)
"""A turn in the middle of a long chat: an answer of a few paragraphs to a question about a piece of text.
Twice as many tokens are read as written, so that neither reading nor writing alone decides.
"""


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The latest runs under the same conditions, newest last."""

    where: RunConditions
    decode: tuple[RunRecord, ...] = ()
    prefill: tuple[RunRecord, ...] = ()
    beyond: tuple[int, ...] = ()
    """For each run, how many bytes of anonymous memory the process used beyond its plan."""
    turns: tuple[ChatUse, ...] = ()
    """Chat turns, including disturbed ones."""
    when: float = 0.0
    """Time of the last run, in seconds since 1970."""


class _CalibrationFile(msgspec.Struct, frozen=True):
    format: int
    runs: list[RunHistory]


class Calibration:
    """A snapshot of earlier runs, used to correct predictions."""

    def __init__(self, runs: Iterable[RunHistory] = (), *, now: float | None = None) -> None:
        """now: the time from which the age of runs is computed, in seconds since 1970."""
        self._runs = {history.where: history for history in runs}
        self._now = time.time() if now is None else now

    @classmethod
    def read(cls) -> Calibration:
        """Read the file. If it cannot be read, return an empty calibration."""
        try:
            data = paths.read_bytes(paths.cache_dir() / _FILE, _MAX_FILE_BYTES)
            content = msgspec.json.decode(data, type=_CalibrationFile)
            return cls(content.runs if content.format == _FORMAT else ())
        except (OSError, FolderError, msgspec.MsgspecError, RecursionError):
            return cls()

    def knows(self, where: RunConditions) -> bool:
        """Return whether loads have been measured under these exact conditions."""
        return where in self._runs and self._estimate(self._runs[where].decode) is not None

    def correction(self, where: RunConditions) -> Correction:
        """Return the correction measured under these conditions, or else under the most similar ones."""
        decode, decode_of = self._factors(where, "decode")
        prefill, prefill_of = self._factors(where, "prefill")
        if not decode_of and not prefill_of:
            return Correction()
        return Correction(decode, prefill, f"corrected by {decode_of or prefill_of} on this machine")

    def beyond(self, where: RunConditions) -> int:
        """Return the largest number of bytes by which a similar run exceeded its plan; 0 if unknown."""
        likest = next((history.beyond for history in self._near(where) if history.beyond), ())
        return max((n for n in likest if abs(n) < _MAX_BEYOND), default=0)

    def use(self) -> ChatUse:
        """Return the usual token counts of chats on this machine, or `USUAL` if too few are known."""
        turns = [
            turn
            for history in self._runs.values()
            for turn in history.turns
            if all(0 <= n < _DEEPEST for n in (turn.read, turn.written, turn.depth, turn.beside))
        ]
        tokens = sum(turn.read + turn.written for turn in turns)
        if len(turns) < _MIN_TURNS or not tokens:
            return USUAL
        return ChatUse(
            sum(turn.read for turn in turns),
            sum(turn.written for turn in turns),
            sum((turn.read + turn.written) * turn.depth for turn in turns) // tokens,
            sum((turn.read + turn.written) * turn.beside for turn in turns) // tokens,
        )

    def _factors(self, where: RunConditions, name: Literal["decode", "prefill"]) -> tuple[float, str]:
        """Return the ratio of actual to forecast time under these conditions, and its source.

        Returns 1.0 and '' if no runs apply.
        """
        factors: dict[RunConditions, float] = {}
        for history in self._near(where):
            factor = self._estimate(history.decode if name == "decode" else history.prefill)
            if factor is not None:
                factors[history.where] = factor
        own = next((at for at in factors if _is_model(at, where)), None)
        if own is not None:
            return factors[own], f"measurements of {_label(own)} {own.quant}"
        alike = [factor for at, factor in factors.items() if at.architecture == where.architecture]
        if alike:
            return _common(alike), f"measurements of {where.architecture} models"
        if len({_label(at) for at in factors}) >= _MODELS:
            return _common(factors.values()), "measurements of other models"
        return 1.0, ""

    def _estimate(self, runs: Sequence[RunRecord]) -> float | None:
        """Return the factor estimated from these runs, or None if they are too few or too old."""
        sound = [run for run in runs if _MIN_FACTOR < run.factor < _MAX_FACTOR and run.weight > 0]
        logs = [
            (
                math.log(run.factor),
                min(run.weight, 1.0) * 0.5 ** (max(0.0, self._now - run.when) / _HALF_LIFE),
            )
            for run in sound
        ]
        if len(logs) < _MIN_RUNS or sum(weight for _, weight in logs) < _MIN_WEIGHT:
            return None
        median = _quantile(logs, 0.5)
        spread = 3 * max(_NEAR, _quantile([(abs(x - median), weight) for x, weight in logs], 0.5))
        near = [(x, weight * min(1.0, (spread / max(abs(x - median), spread)) ** 2)) for x, weight in logs]
        return math.exp(_quantile(near, _QUANTILE))

    def _near(self, where: RunConditions) -> list[RunHistory]:
        """Return the runs on the same machine with the same build and devices.

        The most similar runs come first and, among equally similar ones, the newest.
        """

        def likeness(history: RunHistory) -> tuple[bool, bool, bool, bool, float]:
            at = history.where
            same, model = at.architecture == where.architecture, _is_model(at, where)
            alike = same and at.quant == where.quant
            return model and alike, model, alike, same, history.when

        own = (where.machine, where.build, where.backend)
        here = [history for at, history in self._runs.items() if (at.machine, at.build, at.backend) == own]
        return sorted(here, key=likeness, reverse=True)

    def with_run(
        self,
        where: RunConditions,
        *,
        decode: float | None = None,
        prefill: float | None = None,
        beyond: int | None = None,
        weight: float = 1.0,
        turn: ChatUse | None = None,
    ) -> Calibration:
        """Return a calibration with one more run, dropping the oldest runs if there are too many.

        weight: below 1 for a less reliable run.
        """
        old = self._runs.get(where, RunHistory(where=where))
        decodes = () if decode is None else (RunRecord(decode, self._now, weight),)
        prefills = () if prefill is None else (RunRecord(prefill, self._now, weight),)
        new = RunHistory(
            where=where,
            decode=(*old.decode, *decodes)[-_MAX_RUNS:],
            prefill=(*old.prefill, *prefills)[-_MAX_RUNS:],
            beyond=(*old.beyond, *(() if beyond is None else (beyond,)))[-_MAX_RUNS:],
            turns=(*old.turns, *(() if turn is None else (turn,)))[-_MAX_RUNS:],
            when=self._now,
        )
        others = [history for at, history in self._runs.items() if at != where]
        newest = sorted(others, key=lambda history: history.when)[-_MAX_HISTORIES + 1 :]
        return Calibration([*newest, new], now=self._now)

    def write(self) -> None:
        """Replace the file. Failures are ignored, as they only make predictions less precise."""
        with contextlib.suppress(OSError, FolderError):
            content = _CalibrationFile(_FORMAT, list(self._runs.values()))
            data = msgspec.json.format(msgspec.json.encode(content))
            paths.replace(paths.cache_dir() / _FILE, data)


@cache
def build(format: Format = "gguf") -> str:
    """Return the version of the backend for a format, without loading the backend."""
    if format == "mlx":
        return mlx.version()
    try:
        return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
    except importlib.metadata.PackageNotFoundError:
        return "llama-cpp-python"


def _quantile(weighted: Iterable[tuple[float, float]], q: float) -> float:
    """Return the `q`-quantile of weighted values, given as (value, weight) pairs."""
    ordered = sorted(weighted)
    reached = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(reached, q * reached[-1])][0]


def _common(factors: Collection[float]) -> float:
    """Return the factor nearest to 1, or 1 itself if some factors are above it and some below."""
    smallest, largest = min(factors), max(factors)
    return smallest if smallest > 1 else min(largest, 1.0)


def _is_model(at: RunConditions, where: RunConditions) -> bool:
    return (at.model, at.architecture) == (where.model, where.architecture)


def _label(where: RunConditions) -> str:
    return where.model or f"{where.architecture} models"
