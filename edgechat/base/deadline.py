"""Deadlines for work that may hang, such as resolving names or reading a response that trickles in."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """The work ran out of time.

    stalled: True if it had stopped making progress, False if it was just too slow.
    """

    def __init__(self, seconds: float, *, stalled: bool) -> None:
        super().__init__(f"no data for {seconds:g} s" if stalled else f"not finished after {seconds:g} s")
        self.seconds = seconds
        self.stalled = stalled


class ProgressWatch:
    """Tracks the progress of the work. Thread-safe."""

    def __init__(self) -> None:
        self.last_progress = time.monotonic()
        self.abandoned = False

    def beat(self) -> None:
        """Record progress. Raises OutOfTime, to stop the work, if nobody is waiting for the result."""
        if self.abandoned:
            raise OutOfTime(0, stalled=False)
        self.last_progress = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the deadline, for example for a slow disk. Raises OutOfTime, as `beat` does."""
        self.beat()
        self.last_progress = math.inf
        try:
            yield
        finally:
            self.last_progress = time.monotonic()


def run_within(seconds: float, idle: float, work: Callable[[ProgressWatch], T]) -> T:
    """Run `work` in a thread and return its result, or raise its exception.

    Raises OutOfTime after `seconds` (math.inf means no limit), or after `idle` seconds without a `beat`. The
    daemon thread is then left to finish on its own.
    """
    watch, outcome = ProgressWatch(), Future[T]()

    def run() -> None:
        try:
            outcome.set_result(work(watch))
        except BaseException as error:  # raised again by outcome.result()
            outcome.set_exception(error)

    threading.Thread(target=run, name="network", daemon=True).start()
    now = time.monotonic()
    end = now + seconds
    try:
        while not wait([outcome], max(0.0, min(idle, end - now, watch.last_progress + idle - now))).done:
            now = time.monotonic()
            if now >= end:
                raise OutOfTime(seconds, stalled=False)
            if now >= watch.last_progress + idle:
                raise OutOfTime(idle, stalled=True)
    finally:
        watch.abandoned = True
    return outcome.result()
