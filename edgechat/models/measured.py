"""What quantizations were measured to lose on this machine (`edgechat bench --quality`), in the cache folder.

A file is known by a fingerprint of its content, so that it may be moved. If the file of measurements is
damaged, it starts anew.
"""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError
from edgechat.models.local.fingerprint import fingerprint_of

_FILE = "quality.json"
_FORMAT = 1
_MOST = 256
"""Measurements that are kept, the newest."""
_MOST_BYTES = 1 << 20


class MeasuredLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The mean Kullback-Leibler divergence of a model file from a base, in nats."""

    fingerprint: str
    size: int
    """Bytes of the file; 0 for a folder."""
    value: float
    error: float
    base: str
    """What it was compared with: 'F16'."""
    n_tokens: int


class _MeasuredFile(msgspec.Struct, frozen=True):
    format: int
    losses: list[MeasuredLoss]


def measured_loss(path: Path) -> MeasuredLoss | None:
    """Return what a model on this machine was measured to lose; None if that was not measured.

    Quick unless something of the same size was measured; then its fingerprint takes some milliseconds, once.
    """
    try:
        file = paths.cache_dir() / _FILE
        losses = _losses(file, os.stat(file).st_mtime_ns)
        state = os.stat(path)
        size = 0 if path.is_dir() else state.st_size
        same = [loss for loss in losses if loss.size == size]
        own = _fingerprint(path, state.st_mtime_ns) if same else ""
    except (OSError, FolderError):
        return None
    return next((loss for loss in same if loss.fingerprint == own), None)


def keep(path: Path, value: float, error: float, base: str, n_tokens: int) -> None:
    """Note what a model file was measured to lose. Failures are ignored: it can be measured again."""
    with contextlib.suppress(OSError, FolderError):
        file = paths.cache_dir() / _FILE
        loss = MeasuredLoss(
            fingerprint=_fingerprint(path, os.stat(path).st_mtime_ns),
            size=0 if path.is_dir() else path.stat().st_size,
            value=value,
            error=error,
            base=base,
            n_tokens=n_tokens,
        )
        others = [one for one in _read(file) if one.fingerprint != loss.fingerprint]
        content = _MeasuredFile(_FORMAT, [*others[1 - _MOST :], loss])
        paths.replace(file, msgspec.json.format(msgspec.json.encode(content)))


def _read(file: Path) -> list[MeasuredLoss]:
    try:
        content = msgspec.json.decode(paths.read_bytes(file, _MOST_BYTES), type=_MeasuredFile)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return []
    return content.losses if content.format == _FORMAT else []


@lru_cache(1)
def _losses(file: Path, _changed: int) -> list[MeasuredLoss]:
    return _read(file)


@lru_cache(_MOST)
def _fingerprint(path: Path, _changed: int) -> str:
    return fingerprint_of(path, "").hex()
