"""Requests on their way to the scheduler: rendered and tokenized beside the thread that computes.

A template of a stranger may hang for seconds, and a long text takes a tenth of one: no stream waits for that.
Requests are prepared one after the other, in the order in which they came. One that is cancelled before its
turn is not prepared at all.
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
    """Something to be made for a request."""

    request: ChatRequest
    then: Callable[[ChatRequest, Any], list[Event]]
    """What the engine does with what was made, or with the EdgechatError for which it was not."""
    sequence: Sequence | None
    """None for a request that is none yet."""
    future: Future[Any]

    @property
    def outcome(self) -> Any:
        """What was made, or an EdgechatError."""
        try:
            return self.future.result()
        except Exception as error:
            return explained(error)


class Preparation:
    """Makes what the engine queues, in a thread of its own."""

    def __init__(self, done: Callable[[], None]) -> None:
        """`done` is called, in that thread, each time something is ready."""
        self._done = done
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preparation")
        self._jobs: list[Job] = []

    @property
    def n_waiting(self) -> int:
        """Requests that wait for something to be made."""
        return len(self._jobs)

    def begin(
        self,
        request: ChatRequest,
        work: Callable[[], Any],
        then: Callable[[ChatRequest, Any], list[Event]],
        sequence: Sequence | None = None,
    ) -> None:
        """Do `work` as soon as what was begun earlier is done."""
        self._jobs.append(Job(request, then, sequence, self.submit(work)))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do `work`, which belongs to no request, as soon as what was begun earlier is done."""
        future = self._thread.submit(work)
        future.add_done_callback(lambda _: self._done())
        return future

    def ready(self) -> list[Job]:
        """Return the jobs that are done; they are remembered no more."""
        done = [job for job in self._jobs if job.future.done()]
        self._jobs = [job for job in self._jobs if job not in done]
        return done

    def give_up(self, request_id: str) -> Job | None:
        """Return the job of such a request, if there is one, and do not wait for it."""
        job = next((job for job in self._jobs if job.request.id == request_id), None)
        if job is not None:
            self._jobs.remove(job)
            job.future.cancel()
        return job

    def forget(self, chat: str) -> None:
        """Let the requests of a chat that is deleted belong to none."""
        for job in self._jobs:
            if job.request.chat == chat:
                job.request = replace(job.request, chat=None)
                if job.sequence is not None:
                    job.sequence.request = job.request

    def close(self) -> None:
        """End the thread, which must not look at the vocabulary any more."""
        self._thread.shutdown(cancel_futures=True)


def explained(error: Exception) -> EdgechatError:
    """Return what ends the one request that met this error; where a fault of ours lies, the log tells."""
    if isinstance(error, ValueError):
        return EngineError(f"The request is not valid: {error}")
    return fault(error)


def fault(error: Exception) -> EdgechatError:
    """Return the same where the request cannot be to blame."""
    if isinstance(error, EdgechatError):
        return error
    _LOG.error("a fault of edgechat's own", exc_info=error)
    return EngineError(
        f"The engine failed on this request: {error!r}",
        hint="Other requests are not affected. Please report this error, with the engine's log.",
    )
