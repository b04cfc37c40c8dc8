"""What earlier loads really took: speeds and memory, kept in the cache folder, to correct what is planned.

The worker writes after each answer how long it took against the roofline (`speed.py`), and after each load
what its process took beyond its plan. The median of the last runs counts, of the same architecture and
quantization before others. Whatever is wrong with the file, it is only learnt anew.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import statistics
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from edgechat import paths
from edgechat.device import mlx
from edgechat.errors import FolderError
from edgechat.models.header import Format
from edgechat.planner.speed import Correction

N = TypeVar("N", int, float)

_FILE = "learned.json"
_RUNS = 8
_PLACES = 64
_LEAST, _MOST = 1e-3, 1e3
_MOST_BYTES = 1 << 38
_MOST_READ = 1 << 20
"""Bytes of the file: ten times what we write."""


class Where(msgspec.Struct, frozen=True, order=True):
    """What a run's speed depends on."""

    machine: str
    """The processor and its threads."""
    build: str
    """Of llama.cpp, or of MLX: what one has done says nothing of the other."""
    backend: str
    """'CPU', 'CUDA', 'CPU+CUDA', 'MLX': where the layers are."""
    architecture: str
    quant: str

    @property
    def key(self) -> str:
        """The same as one line."""
        return " | ".join((self.machine, self.build, self.backend, self.architecture, self.quant))


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The last runs in one place, the newest last."""

    where: Where
    decode: tuple[float, ...] = ()
    """Real seconds over the roofline's."""
    prefill: tuple[float, ...] = ()
    beyond: tuple[int, ...] = ()
    """Bytes of memory of its own that the process took beyond its plan, or less than it."""
    when: float = 0.0
    """Of the last one, in seconds since 1970."""


class Learned:
    """What was learnt, as read at one moment."""

    def __init__(self, runs: Iterable[Runs] = ()) -> None:
        self._runs = {one.where: one for one in runs}

    @classmethod
    def read(cls) -> Learned:
        """Return what the file says; nothing where there is none."""
        try:
            return cls(msgspec.json.decode(paths.read_bytes(_path(), _MOST_READ), type=list[Runs]))
        except (OSError, FolderError, msgspec.MsgspecError, RecursionError):
            return cls()

    def knows(self, where: Where) -> bool:
        """Say whether the speed of such loads was measured, and not only that of similar ones."""
        return where in self._runs and bool(self._runs[where].decode)

    def correction(self, where: Where) -> Correction:
        """Return how much slower than the roofline such a load was before, or the likest ones were."""
        decode, decode_of = self._factors(where, "decode")
        prefill, prefill_of = self._factors(where, "prefill")
        if not decode_of and not prefill_of:
            return Correction()
        return Correction(decode, prefill, f"corrected by {decode_of or prefill_of} on this machine")

    def beyond(self, where: Where) -> int:
        """Return what such a process took beyond its plan at most; 0 where that was never seen."""
        alike = [one for one in self._near(where) if one.beyond]
        seen = [n for one in alike[:1] for n in one.beyond if abs(n) < _MOST_BYTES]
        return max(seen, default=0)

    def _factors(self, where: Where, name: str) -> tuple[float, str]:
        for one in self._near(where):
            factors = [factor for factor in getattr(one, name) if _LEAST < factor < _MOST]
            if factors:
                return statistics.median(factors), _in_words(one.where, where)
        return 1.0, ""

    def _near(self, where: Where) -> list[Runs]:
        """Return the runs on this machine and build, the likest first, then the newest."""

        def likeness(one: Runs) -> tuple[bool, bool, float]:
            same = one.where.architecture == where.architecture
            return same and one.where.quant == where.quant, same, one.when

        own = (where.machine, where.build, where.backend)
        here = [one for at, one in self._runs.items() if (at.machine, at.build, at.backend) == own]
        return sorted(here, key=likeness, reverse=True)

    def with_run(
        self,
        where: Where,
        *,
        decode: float | None = None,
        prefill: float | None = None,
        beyond: int | None = None,
    ) -> Learned:
        """Return the same with one more run, the oldest forgotten."""
        old = self._runs.get(where, Runs(where=where))
        new = Runs(
            where=where,
            decode=_appended(old.decode, decode),
            prefill=_appended(old.prefill, prefill),
            beyond=_appended(old.beyond, beyond),
            when=time.time(),
        )
        others = [one for at, one in self._runs.items() if at != where]
        kept = sorted(others, key=lambda one: one.when)[-_PLACES + 1 :]
        return Learned([*kept, new])

    def write(self) -> None:
        """Put the file in the place of the old one. It is only a help: nothing is said where it fails."""
        with contextlib.suppress(OSError, FolderError):
            paths.replace(_path(), msgspec.json.format(msgspec.json.encode(list(self._runs.values()))))


def learn(
    where: Where,
    *,
    decode: float | None = None,
    prefill: float | None = None,
    beyond: int | None = None,
) -> None:
    """Keep what a run took. Takes a millisecond or two."""
    Learned.read().with_run(where, decode=decode, prefill=prefill, beyond=beyond).write()


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


def _in_words(found: Where, wanted: Where) -> str:
    if found.architecture == wanted.architecture:
        return f"what {found.architecture} models in {found.quant} did"
    return f"what {found.architecture} models did"


def _path() -> Path:
    return paths.cache_dir() / _FILE
