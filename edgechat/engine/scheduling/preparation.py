"""Background preparation of requests: rendering and tokenizing, in a thread beside the one that decodes.

An untrusted template may hang for seconds, and a long text takes a tenth of one: no stream waits for that.
Requests are prepared in the order in which they arrive; one that is cancelled before that is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from edgechat.base.errors import EdgechatError, EngineError
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.types import ChatRequest, Event

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job:
    """Background work for a request."""

    request: ChatRequest
    then: Callable[[ChatRequest, Any], list[Event]]
    """What the engine does with the result."""
    sequence: Sequence | None
    """None for a request that has no sequence yet."""
    future: Future[Any]


class Preparation:
    """A thread that works for the engine, one job after the other."""

    def __init__(self, done: Callable[[], None]) -> None:
        """`done` is called in that thread whenever a job is done."""
        self._done = done
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preparation")
        self._jobs: list[Job] = []

    @property
    def n_waiting(self) -> int:
        """Number of requests whose job is not done."""
        return len(self._jobs)

    def begin(
        self,
        request: ChatRequest,
        work: Callable[[], Any],
        then: Callable[[ChatRequest, Any], list[Event]],
        sequence: Sequence | None = None,
    ) -> None:
        """Queue work for a request; `ready` returns it once it is done."""
        self._jobs.append(Job(request, then, sequence, self.submit(work)))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work that belongs to no request."""
        future = self._thread.submit(work)
        future.add_done_callback(lambda _: self._done())
        return future

    def ready(self) -> list[Job]:
        """Remove and return the jobs that are done."""
        done = [job for job in self._jobs if job.future.done()]
        self._jobs = [job for job in self._jobs if job not in done]
        return done

    def give_up(self, request_id: str) -> Job | None:
        """Remove and return the job of a request, if there is one."""
        job = next((job for job in self._jobs if job.request.id == request_id), None)
        if job is not None:
            self._jobs.remove(job)
            job.future.cancel()
        return job

    def forget(self, chat: str) -> None:
        """Detach the requests of a deleted chat from it."""
        for job in self._jobs:
            if job.request.chat == chat:
                job.request = replace(job.request, chat=None)
                if job.sequence is not None:
                    job.sequence.request = job.request

    def close(self) -> None:
        """End the thread, so that it does not use the vocabulary any more."""
        self._thread.shutdown(cancel_futures=True)


def explained(error: Exception) -> EdgechatError:
    """Return the error that ends a request: for a ValueError, that it is invalid; else see `fault`."""
    if isinstance(error, ValueError):
        return EngineError(f"The request is not valid: {error}")
    return fault(error)


def fault(error: Exception) -> EdgechatError:
    """Return the error that ends a request; an internal one is logged with its traceback."""
    if isinstance(error, EdgechatError):
        return error
    _LOG.error("a fault of edgechat's own", exc_info=error)
    return EngineError(
        f"The engine failed on this request: {error!r}",
        hint="Other requests are not affected. Please report this error, with the engine's log.",
    )
