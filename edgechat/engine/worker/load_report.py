"""Load report: compares actual memory use and speed with the plan, and records both for future plans."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from edgechat.base.text import mebibytes
from edgechat.device.load import Disturbance, LoadSample, disturbance, moment
from edgechat.engine.types import Delta, Difference, Event, Finished, ToolCallBegun
from edgechat.native.params import Buffer
from edgechat.planner.estimate.calibration import Calibration, ChatUse
from edgechat.planner.estimate.memory import program_bytes
from edgechat.planner.plan import LoadPlan

_LOG = logging.getLogger(__name__)
_PROMPT, _REPLY = 128, 16  # minimum tokens; shorter prompts and replies say little about speed
_LEAST = 0.004  # seconds per token; below this, call overhead matters more than memory speed
_HOT = 0.25  # weight of a run on an overheated processor, which may be a temporary problem
_TOLERANCE, _TOLERATED = 0.02, 32 * 2**20
"""A fraction of the buffer and a number of bytes. Deviations up to the larger of the two are ignored."""


class LoadReport:
    """Learns from one load of a model and from the requests it serves."""

    def __init__(self, plan: LoadPlan, save: Callable[[], None] = lambda: None) -> None:
        """save: called at the end of each request to save other estimates."""
        self._plan = plan
        self._save = save
        self._shared = False
        # Without accelerators, the number of busy threads is known.
        on_processor = plan.backend == "llama.cpp" and not plan.devices
        self._threads = plan.threads if on_processor else None
        self._request_sample: LoadSample | None = None
        self._reply_sample: LoadSample | None = None

    def before_step(self, n_running: int) -> None:
        """Sample the machine's load before the first step of a request."""
        if n_running and self._request_sample is None:
            self._request_sample = moment()

    def loaded(
        self, buffers: tuple[Buffer, ...], touched: int, anonymous: int | None, n_vocab: int
    ) -> tuple[Difference, ...]:
        """Compare allocated buffers with the plan, and record how much other memory the process uses.

        touched: how many bytes of its buffers the process has written to, or 0 if unknown. anonymous: how
        many bytes of its memory are not mapped from files, or None if unknown.
        """
        if self._plan.where is not None and anonymous is not None and touched:
            program = program_bytes(n_vocab, "mlx" if self._plan.backend == "mlx" else "gguf")
            more = anonymous - touched - program
            Calibration.read().with_run(self._plan.where, beyond=more).write()
        changed = differences(self._plan.buffers, buffers) if buffers else ()
        for difference in changed:
            real, planned = mebibytes(difference.real), mebibytes(difference.planned)
            _LOG.info("%s takes %s for %s, not %s", difference.name, real, difference.what, planned)
        return changed

    def learn_from(self, events: Iterable[Event], n_running: int, beside: int = 0) -> None:
        """Learn from finished requests. Speeds only count if a request ran alone on an idle machine.

        beside: number of cached tokens held by other running requests.
        """
        self._shared = self._shared or n_running > 1
        for event in events:
            if isinstance(event, Delta | ToolCallBegun) and self._reply_sample is None:
                self._reply_sample = moment()
            elif isinstance(event, Finished):
                self._learn_turn(event, beside)
                self._shared = n_running > 0
                self._save()
        if not n_running:
            self._request_sample = self._reply_sample = None

    def _disturbances(self) -> tuple[Disturbance | None, Disturbance | None]:
        """Return what slowed down the prefill and the decoding of the last reply."""
        if self._request_sample is None or self._reply_sample is None:
            return "busy", "busy"
        reading = disturbance(self._request_sample, self._reply_sample, self._threads)
        return reading, disturbance(self._reply_sample, moment(), self._threads)

    def _learn_turn(self, finished: Finished, beside: int) -> None:
        forecast, where = self._plan.forecast, self._plan.where
        if forecast is None or where is None:
            return
        usage, timings = finished.usage, finished.timings
        if usage.dropped_turns:  # the window may have moved during the reply, which interrupted it
            return
        if forecast.decoding(usage.prompt_tokens) < _LEAST:
            return
        computed = usage.prompt_tokens - usage.cached_tokens
        decode = prefill = None
        if computed >= _PROMPT and timings.prompt_tps > 0:
            expected = forecast.prefilling(computed, usage.cached_tokens)
            prefill = computed / timings.prompt_tps / expected
        if usage.completion_tokens >= _REPLY and timings.decode_tps > 0:
            at = usage.prompt_tokens + usage.completion_tokens / 2
            faster = finished.speculation.speedup if finished.speculation else 1.0  # than plain decoding
            decode = max(faster, 1e-3) / timings.decode_tps / forecast.decoding(at)
        depth = usage.cached_tokens + (computed + usage.completion_tokens) // 2
        turn = ChatUse(computed, usage.completion_tokens, depth, beside)
        reading, writing = ("busy", "busy") if self._shared else self._disturbances()
        prefill = prefill if reading in (None, "hot") else None
        decode = decode if writing in (None, "hot") else None
        weight = _HOT if "hot" in (reading, writing) else 1.0
        known = Calibration.read()
        known.with_run(where, decode=decode, prefill=prefill, weight=weight, turn=turn).write()


def anonymous_memory() -> int | None:
    """Return how many bytes of this process's memory are not mapped from files, or None if not on Linux."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def differences(planned: tuple[Buffer, ...], real: tuple[Buffer, ...]) -> tuple[Difference, ...]:
    """Return the sizes that differ from the plan by more than the tolerance."""
    before, after = _by_name(planned), _by_name(real)
    candidates: list[Difference] = []
    for name in sorted({*before, *after}):
        empty = Buffer(name, is_host=True)
        old, new = before.get(name, empty), after.get(name, empty)
        candidates += (
            Difference(name, "weights", old.weights, new.weights),
            Difference(name, "cache", old.cache, new.cache),
            Difference(name, "compute", old.compute, new.compute),
        )
    return tuple(filter(_is_notable, candidates))


def _by_name(buffers: tuple[Buffer, ...]) -> dict[str, Buffer]:
    """Return the buffers keyed by name, counting all weights in RAM under 'CPU'.

    In the dry run, weights that stay in RAM are in memory pinned for a GPU (CUDA_Host). In the real load,
    they are memory-mapped (CPU).
    """
    found = {buffer.name: buffer for buffer in buffers}
    for buffer in buffers:
        if buffer.is_host and buffer.name.endswith("_Host"):
            ram = found.get("CPU", Buffer("CPU", is_host=True))
            found["CPU"] = msgspec.structs.replace(ram, weights=ram.weights + buffer.weights)
            found[buffer.name] = msgspec.structs.replace(buffer, weights=0)
    return found


def _is_notable(difference: Difference) -> bool:
    planned, real = difference.planned, difference.real
    return abs(planned - real) > max(_TOLERATED, _TOLERANCE * max(planned, real))
