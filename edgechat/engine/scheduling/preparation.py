"""Background work that requests wait for: rendering, tokenizing, compiling grammars and reading states.

An untrusted template may hang for seconds, and tokenizing a long text takes a tenth of a second. A separate
thread therefore prepares prompts while the engine decodes. It handles requests in the order of their arrival
and skips any that have been cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from edgechat.base.errors import EdgechatError, EngineError
from edgechat.engine.kv.state_store import done_future
from edgechat.engine.scheduling.sequence import Sequence
from edgechat.engine.types import ChatRequest, Event

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job:
    """A piece of background work that a request is waiting for."""

    request: ChatRequest
    future: Future[Any]
    then: Callable[[ChatRequest, Future[Any]], list[Event]]
    """Function that continues the request in the engine's thread."""
    sequence: Sequence | None
    """None if the request does not have a sequence yet."""
    reads: str | None
    """The chat whose saved state is being read, if any."""


class Preparation:
    """Requests waiting for background work, and a thread that does part of that work."""

    def __init__(self, done: Callable[[], None]) -> None:
        """done: called in the thread after each piece of work."""
        self._done = done
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preparation")
        self._jobs: list[Job] = []

    @property
    def n_waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._jobs)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work for the thread."""
        future = self._thread.submit(work)
        future.add_done_callback(lambda _: self._done())
        return future

    def wait_for(
        self,
        future: Future[T],
        request: ChatRequest,
        then: Callable[[ChatRequest, Future[T]], list[Event]],
        sequence: Sequence | None = None,
        *,
        reads: str | None = None,
    ) -> None:
        """Make a request wait for a future. Once the future is done, `ready` returns the request's job."""
        self._jobs.append(Job(request, future, then, sequence, reads))

    def ready(self) -> list[Job]:
        """Remove and return all jobs that are done."""
        done = [job for job in self._jobs if job.future.done()]
        self._jobs = [job for job in self._jobs if job not in done]
        return done

    def give_up(self, request_id: str) -> Job | None:
        """Cancel and return a request's job, if it has one."""
        job = next((job for job in self._jobs if job.request.id == request_id), None)
        if job is not None:
            self._jobs.remove(job)
            job.future.cancel()
        return job

    def forget(self, chat: str) -> None:
        """Detach waiting requests from a deleted chat and its saved state."""
        for job in self._jobs:
            if job.reads == chat:
                job.future = done_future(None)
            if job.request.chat == chat:
                job.request = replace(job.request, chat=None)
                if job.sequence is not None:
                    job.sequence.request = job.request

    def close(self) -> None:
        """Stop the thread and wait until it no longer uses the vocabulary."""
        self._thread.shutdown(cancel_futures=True)


def explained(error: Exception) -> EdgechatError:
    """Return the error that ends a request: EngineError for a ValueError, otherwise the result of `fault`."""
    if isinstance(error, ValueError):
        return EngineError(f"The request is not valid: {error}")
    return fault(error)


def fault(error: Exception) -> EdgechatError:
    """Return the error that ends a request. Internal errors are logged with a traceback."""
    if isinstance(error, EdgechatError):
        return error
    _LOG.error("internal error", exc_info=error)
    return EngineError(
        f"The engine failed on this request: {error!r}",
        hint="Other requests are not affected. Please report this error, with the engine's log.",
    )
