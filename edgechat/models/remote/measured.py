"""Measured speeds of remote models, averaged over recent replies and stored in a file in the cache folder.

A second file stores the startup times of the programs that edgechat starts. A file that is unreadable or
invalid is treated as empty.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from edgechat.base import paths
from edgechat.base.errors import FolderError

T = TypeVar("T")

MOST_REMEMBERED = 512
_MOST_BYTES = 2**18
_SHARE = 0.3
"""Weight of a new reply in the moving average."""


class MeasuredSpeed(msgspec.Struct, frozen=True):
    """A moving average over a model's replies."""

    ttft_ms: float
    decode_tps: float
    when: float
    """Time of the most recent reply, in seconds since 1970."""


class EngineStart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most recent start of a program launched by edgechat."""

    seconds: float = 0.0
    """Duration of the most recent successful start, or 0 if none has succeeded."""
    failure: str = ""
    """Why the last start failed, or '' if it succeeded."""
    log: str = ""
    """Path of the program's log file."""


_SPEEDS = msgspec.json.Decoder(dict[str, MeasuredSpeed])
_STARTS = msgspec.json.Decoder(dict[str, EngineStart])


def measured_speeds() -> dict[str, MeasuredSpeed]:
    """Return the measured speeds, keyed by model name: 'desk/qwen3-32b'."""
    return _read("remote-speeds", _SPEEDS)


def note_speed(name: str, ttft_ms: float, decode_tps: float) -> None:
    """Record the speed of a reply. Errors are ignored."""
    known = measured_speeds()
    if (before := known.pop(name, None)) is not None:
        ttft_ms = before.ttft_ms + _SHARE * (ttft_ms - before.ttft_ms)
        decode_tps = before.decode_tps + _SHARE * (decode_tps - before.decode_tps)
    known[name] = MeasuredSpeed(round(ttft_ms, 1), round(decode_tps, 2), time.time())
    _write("remote-speeds", known)


def forget_speeds(server: str) -> None:
    """Delete the stored speeds of a server's models. Errors are ignored."""
    known = measured_speeds().items()
    _write("remote-speeds", {name: speed for name, speed in known if not name.startswith(f"{server}/")})


def engine_starts() -> dict[str, EngineStart]:
    """Return the recorded starts, keyed by model name: 'vllm:qwen3-8b'."""
    return _read("engine-starts", _STARTS)


def note_start(name: str, start: EngineStart) -> None:
    """Record the most recent start of the engine that runs a model. Errors are ignored."""
    known = engine_starts()
    before = known.pop(name, EngineStart())
    known[name] = start if start.seconds else msgspec.structs.replace(start, seconds=before.seconds)
    _write("engine-starts", known)


def _read(file: str, decoder: msgspec.json.Decoder[dict[str, T]]) -> dict[str, T]:
    try:
        return decoder.decode(paths.read_bytes(_path(file), _MOST_BYTES))
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError, FolderError):
        return {}


def _write(file: str, known: dict[str, T]) -> None:
    """Write the most recent entries, from oldest to newest."""
    with contextlib.suppress(OSError, FolderError):
        paths.replace(_path(file), msgspec.json.encode(dict(list(known.items())[-MOST_REMEMBERED:])))


def _path(file: str) -> Path:
    return paths.cache_dir() / f"{file}.json"
