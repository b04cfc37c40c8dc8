"""Background work that requests wait for: rendering and tokenizing, grammars, saved states.

An untrusted template may hang for seconds, and a long text takes a tenth of a second: a thread beside the one
that decodes prepares prompts, in the order in which requests arrive, and skips those cancelled meanwhile.
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
    """Work in the background that a request waits for."""

    request: ChatRequest
    future: Future[Any]
    then: Callable[[ChatRequest, Future[Any]], list[Event]]
    """Continues the request in the engine's thread."""
    sequence: Sequence | None
    """None if the request has no sequence yet."""
    reads: str | None
    """The chat whose saved state is read."""


class Preparation:
    """The requests that wait for work in the background, and a thread for some of that work."""

    def __init__(self, done: Callable[[], None]) -> None:
        """`done` is called in the thread after each piece of its work."""
        self._done = done
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preparation")
        self._jobs: list[Job] = []

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait."""
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
        """Let a request wait; `ready` returns it once the future is done."""
        self._jobs.append(Job(request, future, then, sequence, reads))

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
        """Detach waiting requests from a deleted chat, and from its saved state."""
        for job in self._jobs:
            if job.reads == chat:
                job.future = done_future(None)
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
