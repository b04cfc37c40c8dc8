"""What earlier loads really took: speeds and memory, kept in the cache folder, to correct what is planned.

The worker writes after each answer how long it took against the roofline (`speed.py`), unless something else
slowed the machine down (`device/load.py`), and after each load what its process took beyond its plan.

Of speeds no single run counts, however odd: it takes some, of which a quantile decides on the quick side of
the median, as all that goes unnoticed makes a run slower; what lies far off the others, or long back, weighs
little. Runs of the same model come first. What others did counts as far as they agree, and what all of them
did only where there are several. Whatever is wrong with the file, it is only learnt anew.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.device import mlx
from edgechat.models.formats.header import Format

N = TypeVar("N")

_FILE = "learned.json"
_FORMAT = 2
"""Raised with each change of the roofline too: what a run took is kept in its terms."""
_RUNS = 16
_ENOUGH, _LEAST_WEIGHT = 3, 1.5
"""Runs from which on they count, and how much those must weigh together."""
_MODELS = 2
"""Models from which on what they did says something of all."""
_HALF_LIFE = 60 * 86400.0
"""Seconds after which a run weighs half."""
_QUANTILE = 0.35
_NEAR = math.log(1.15)
"""How far runs of one quiet machine lie apart, as a logarithm; those three times as far weigh less."""
_PLACES = 64
_LEAST, _MOST = 1e-3, 1e3
_MOST_BYTES = 1 << 38
_MOST_READ = 1 << 20
"""Bytes of the file: ten times what we write."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Real seconds over those of the roofline, and how we know."""

    decode: float = 1.0
    prefill: float = 1.0
    basis: str = "a first estimate from this machine's speed, which the first answers will correct"


class RunConditions(msgspec.Struct, frozen=True, order=True):
    """What a run's speed depends on."""

    machine: str
    """The processor and its threads."""
    build: str
    """Of llama.cpp, or of MLX: what one has done says nothing of the other."""
    backend: str
    """'CPU', 'CUDA', 'CPU+CUDA', 'MLX': where the layers are."""
    architecture: str
    quant: str
    model: str = ""


class RunRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one run took."""

    factor: float
    """Real seconds over the roofline's."""
    when: float
    """In seconds since 1970."""
    weight: float = 1.0
    """Less than 1 where it tells less."""


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The last runs in one place, the newest last."""

    where: RunConditions
    decode: tuple[RunRecord, ...] = ()
    prefill: tuple[RunRecord, ...] = ()
    beyond: tuple[int, ...] = ()
    """Bytes of memory of its own that the process took beyond its plan, or less than it."""
    when: float = 0.0
    """Of the last one, in seconds since 1970."""


class _CalibrationFile(msgspec.Struct, frozen=True):
    format: int
    runs: list[RunHistory]


class Calibration:
    """What was learnt, as read at one moment."""

    def __init__(self, runs: Iterable[RunHistory] = (), *, now: float | None = None) -> None:
        """now: in seconds since 1970, as the age of runs counts."""
        self._runs = {one.where: one for one in runs}
        self._now = time.time() if now is None else now

    @classmethod
    def read(cls) -> Calibration:
        """Return what the file says; nothing where there is none."""
        try:
            found = msgspec.json.decode(paths.read_bytes(_path(), _MOST_READ), type=_CalibrationFile)
            return cls(found.runs if found.format == _FORMAT else ())
        except (OSError, FolderError, msgspec.MsgspecError, RecursionError):
            return cls()

    def knows(self, where: RunConditions) -> bool:
        """Say whether the speed of such loads was measured, and not only that of similar ones."""
        return where in self._runs and self._estimate(self._runs[where].decode) is not None

    def correction(self, where: RunConditions) -> Correction:
        """Return how much slower than the roofline such a load was before, or the likest ones were."""
        decode, decode_of = self._factors(where, "decode")
        prefill, prefill_of = self._factors(where, "prefill")
        if not decode_of and not prefill_of:
            return Correction()
        return Correction(decode, prefill, f"corrected by {decode_of or prefill_of} on this machine")

    def beyond(self, where: RunConditions) -> int:
        """Return what such a process took beyond its plan at most; 0 where that was never seen."""
        alike = [one for one in self._near(where) if one.beyond]
        seen = [n for one in alike[:1] for n in one.beyond if abs(n) < _MOST_BYTES]
        return max(seen, default=0)

    def _factors(self, where: RunConditions, name: Literal["decode", "prefill"]) -> tuple[float, str]:
        """Return by how much such a load is slower, and what tells; '' for nothing."""
        found: dict[RunConditions, float] = {}
        for one in self._near(where):
            seen = self._estimate(one.decode if name == "decode" else one.prefill)
            if seen is not None:
                found.setdefault(one.where, seen)
        own = next((at for at in found if _is_model(at, where)), None)
        if own is not None:
            return found[own], f"measurements of {_called(own)} {own.quant}"
        alike = {at: factor for at, factor in found.items() if at.architecture == where.architecture}
        if alike:
            return _common(alike.values()), f"measurements of {where.architecture} models"
        if len({_called(at) for at in found}) >= _MODELS:
            return _common(found.values()), "measurements of other models"
        return 1.0, ""

    def _estimate(self, runs: Sequence[RunRecord]) -> float | None:
        """Return what runs in one place tell together; None where they are too few, or too old."""
        ages = [(one, max(0.0, self._now - one.when)) for one in runs if _LEAST < one.factor < _MOST]
        seen = [
            (math.log(one.factor), min(one.weight, 1.0) * 0.5 ** (age / _HALF_LIFE))
            for one, age in ages
            if one.weight > 0
        ]
        if len(seen) < _ENOUGH or sum(weight for _, weight in seen) < _LEAST_WEIGHT:
            return None
        middle = _quantile(seen, 0.5)
        spread = 3 * max(_NEAR, _quantile([(abs(x - middle), weight) for x, weight in seen], 0.5))
        near = [(x, weight * min(1.0, (spread / max(abs(x - middle), spread)) ** 2)) for x, weight in seen]
        return math.exp(_quantile(near, _QUANTILE))

    def _near(self, where: RunConditions) -> list[RunHistory]:
        """Return the runs on this machine and build, the likest first, then the newest."""

        def likeness(one: RunHistory) -> tuple[bool, bool, bool, bool, float]:
            same, model = one.where.architecture == where.architecture, _is_model(one.where, where)
            alike = same and one.where.quant == where.quant
            return model and alike, model, alike, same, one.when

        own = (where.machine, where.build, where.backend)
        here = [one for at, one in self._runs.items() if (at.machine, at.build, at.backend) == own]
        return sorted(here, key=likeness, reverse=True)

    def with_run(
        self,
        where: RunConditions,
        *,
        decode: float | None = None,
        prefill: float | None = None,
        beyond: int | None = None,
        weight: float = 1.0,
    ) -> Calibration:
        """Return the same with one more run, the oldest forgotten."""
        old = self._runs.get(where, RunHistory(where=where))
        new = RunHistory(
            where=where,
            decode=_appended(old.decode, None if decode is None else RunRecord(decode, self._now, weight)),
            prefill=_appended(
                old.prefill, None if prefill is None else RunRecord(prefill, self._now, weight)
            ),
            beyond=_appended(old.beyond, beyond),
            when=self._now,
        )
        others = [one for at, one in self._runs.items() if at != where]
        kept = sorted(others, key=lambda one: one.when)[-_PLACES + 1 :]
        return Calibration([*kept, new], now=self._now)

    def write(self) -> None:
        """Put the file in the place of the old one. It is only a help: nothing is said where it fails."""
        with contextlib.suppress(OSError, FolderError):
            found = _CalibrationFile(_FORMAT, list(self._runs.values()))
            paths.replace(_path(), msgspec.json.format(msgspec.json.encode(found)))


def learn(
    where: RunConditions,
    *,
    decode: float | None = None,
    prefill: float | None = None,
    beyond: int | None = None,
    weight: float = 1.0,
) -> None:
    """Keep what a run took; weight: less than 1 where it tells less. Takes a millisecond or two."""
    Calibration.read().with_run(where, decode=decode, prefill=prefill, beyond=beyond, weight=weight).write()


@cache
def build(format: Format = "gguf") -> str:
    """Return which llama.cpp, or which MLX, this is that computes models of a format, without loading it."""
    if format == "mlx":
        return mlx.version()
    try:
        return f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
    except importlib.metadata.PackageNotFoundError:
        return "llama-cpp-python"


def _appended(old: tuple[N, ...], new: N | None) -> tuple[N, ...]:
    return old if new is None else (old + (new,))[-_RUNS:]  # noqa: RUF005  (mypy keeps the type)


def _quantile(weighted: Iterable[tuple[float, float]], q: float) -> float:
    """Return the value below which lies the share `q` of the weight, of (value, weight)."""
    ordered = sorted(weighted)
    reached = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(reached, q * reached[-1])][0]


def _common(factors: Iterable[float]) -> float:
    """Return what all factors have in common: the one nearest to 1, or 1 where they lie on both sides."""
    found = sorted(factors)
    return found[0] if found[0] > 1 else min(found[-1], 1.0)


def _is_model(found: RunConditions, wanted: RunConditions) -> bool:
    return (found.model, found.architecture) == (wanted.model, wanted.architecture)


def _called(where: RunConditions) -> str:
    return where.model or f"{where.architecture} models"


def _path() -> Path:
    return paths.cache_dir() / _FILE
