"""Connection to a worker process: its pipe, the streams of its requests, and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from edgechat.base import paths
from edgechat.base.errors import EngineClosed, EngineCrashed, FolderError, PromptTooLong, RemoteWorkerLost
from edgechat.base.process import frames, spawn
from edgechat.base.text import printable
from edgechat.device.memory import oom_kills
from edgechat.device.remote.workers import why_lost
from edgechat.engine import types
from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.worker import messages
from edgechat.engine.worker.messages import Cancel, Inspected, Loaded, Loading, WorkerEvent
from edgechat.planner.plan import LoadPlan

_Answer = TypeVar("_Answer", types.Embedded, types.Translated)
_LOG = logging.getLogger(__name__)
_LOGS_KEPT = 10
_LOG_TAIL = 4096
_CLOSE_SECONDS = 2.0
_ABORTED = (-6, 3)
"""Exit codes of an aborted process: SIGABRT, and 3 on Windows."""
_WITHOUT = "The partial answer is kept; the next message loads the model without that worker."
_SIGKILL = 9  # signal.SIGKILL, which does not exist on Windows
_LAST_EVENTS = (types.Finished, types.Failed, types.Embedded, types.Translated)


class _EventQueue(asyncio.Queue[WorkerEvent | None]):
    """A request's events. None means that the worker has ended."""

    finished = False
    """Whether the last event has been received."""

    async def get(self) -> WorkerEvent | None:
        event = await super().get()
        self.finished = event is None or isinstance(event, _LAST_EVENTS)
        return event


class WorkerConnection:
    """A connection to one worker process, from its start to its end."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: Path | None,
        on_end: Callable[[WorkerConnection], None],
    ) -> None:
        self.victims: set[str] = set()
        """Requests that were running when the worker died."""
        self._process = process
        self._on_end = on_end
        self._closing = False
        self._garbled = False
        self._servers: tuple[str, ...] = ()
        self._cancelled: set[str] = set()
        self.log = log
        """Log file for the process's stderr, or None if no log could be created."""
        self._oom_kills = oom_kills()
        self._encoder = msgspec.msgpack.Encoder()
        self._streams: dict[str | None, _EventQueue] = {}
        self._persisted: dict[str | None, asyncio.Event] = {}
        self._inspections: deque[tuple[str | None, asyncio.Future[Snapshot | None]]] = deque()
        self._loading = self._streams[None] = _EventQueue()
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def spawn(cls, on_end: Callable[[WorkerConnection], None]) -> WorkerConnection:
        """Start the process, logging its stderr to a new file."""
        log, handle = open_log()
        try:
            process = await asyncio.create_subprocess_exec(*spawn.command("engine"), **spawn.options(handle))
        finally:
            os.close(handle)
        _LOG.info("engine process %d is started; its log: %s", process.pid, log)
        return cls(process, log, on_end)

    @property
    def lost_its_memory(self) -> bool:
        """Whether the system probably killed the worker because memory ran out."""
        killed = not self._closing and not self._garbled and self._process.returncode == -_SIGKILL
        return killed and (self._oom_kills is None or oom_kills() != self._oom_kills)

    @property
    def alive(self) -> bool:
        """Whether more events may arrive."""
        return not self._reader.done()

    async def load(
        self, plan: LoadPlan, cache_policy: types.CachePolicy, on_progress: Callable[[float], None] | None
    ) -> types.ModelInfo:
        """Load the model and wait until it is ready. Raises EngineClosed if `close` stops the load."""
        self._servers = plan.rpc
        self.send(messages.Load(plan, cache_policy))
        while True:
            match await self._loading.get():
                case Loading(progress):
                    if on_progress is not None:
                        on_progress(progress)
                case Loaded(model):
                    _LOG.info("%s is loaded by %s in %.0f ms", model.name, model.backend, model.load_ms)
                    return model
                case types.Failed() | None if self._closing:
                    raise closed()
                case types.Failed(_, error):
                    raise error.error()
                case None:
                    raise await self._crashed("while loading the model")

    async def stream(self, request: types.ChatRequest) -> AsyncGenerator[types.RequestEvent, None]:
        """Send a request and yield its events."""
        if request.id in self._streams or request.id in self._cancelled:
            raise ValueError(f"request {request.id} is running already")
        with self._events(request.id, messages.Generate(request)) as events:
            while not events.finished:
                match await events.get():
                    case event if isinstance(event, types.RequestEvent):
                        yield event
                    case types.Failed(_, error):
                        raise error.error()
                    case None if self._closing:
                        yield types.Finished.cancelled(request.id)
                    case None:
                        raise await self._crashed("during an answer")

    async def ask(self, request: types.Embed | types.Translate, answer: type[_Answer]) -> _Answer | None:
        """Send a request and return its answer, or None if it was cancelled or the worker was closed."""
        with self._events(request.request_id, request) as events:
            event = await events.get()
            if isinstance(event, types.Failed):
                raise event.error.error()
            if event is None and not self._closing:
                embeds = isinstance(request, types.Embed)
                raise await self._crashed("while computing embeddings" if embeds else "while tokenizing text")
            return event if isinstance(event, answer) else None

    @contextlib.contextmanager
    def _events(self, request_id: str, command: messages.Command) -> Iterator[_EventQueue]:
        """Send a request and yield its event queue. Leaving the context early cancels the request."""
        self.send(command)  # first, since a request that is too long to send need not be cancelled
        events = self._streams[request_id] = _EventQueue()
        if not self.alive:
            events.put_nowait(None)
        try:
            yield events
        finally:
            del self._streams[request_id]
            if not events.finished:
                self._cancelled.add(request_id)
                self.send(Cancel(request_id))

    async def persist(self, chat: str | None, seconds: float) -> None:
        """Save a chat's state to disk, waiting up to `seconds`; None saves every chat's."""
        persisted = self._persisted.setdefault(chat, asyncio.Event())
        self.send(messages.Persist(chat))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(persisted.wait(), seconds)

    async def inspect(self, chat: str | None, seconds: float) -> Snapshot | None:
        """Return a snapshot of the engine, or None if it dies or does not respond within `seconds`.

        While a request for the same snapshot is pending, no second request is sent.
        """
        if not self.alive:
            return None
        answer = next((future for asked_chat, future in self._inspections if asked_chat == chat), None)
        if answer is None:
            answer = asyncio.get_running_loop().create_future()
            self._inspections.append((chat, answer))
            self.send(messages.Inspect(chat))
        done, _ = await asyncio.wait([answer], timeout=seconds)
        return answer.result() if done else None

    def send(self, command: messages.Command) -> None:
        """Write a command. If the pipe is broken, the reader will notice. Raises PromptTooLong."""
        assert self._process.stdin is not None
        payload = self._encoder.encode(command)
        try:
            frame = frames.pack(payload)
        except frames.BrokenFrame as error:
            size, limit = math.ceil(len(payload) / 2**20), frames.MAX_FRAME // 2**20
            raise PromptTooLong(
                f"The request is {size} MiB long; the limit is {limit} MiB.",
                hint="Send only the relevant part, or start a new chat.",
            ) from error
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(frame)

    async def _read(self) -> None:
        """Put each event into its request's queue. When the worker ends, put None into every queue."""
        assert self._process.stdout is not None
        decoder = msgspec.msgpack.Decoder(list[WorkerEvent])
        try:
            while True:
                size = frames.length(await self._process.stdout.readexactly(frames.HEADER.size))
                for event in decoder.decode(await self._process.stdout.readexactly(size)):
                    self._dispatch(event)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (frames.BrokenFrame, msgspec.DecodeError):
            self._garbled = True  # further messages cannot be trusted
            self._process.kill()
        finally:
            self.victims = {name for name in self._streams if name is not None}
            self._on_end(self)
            for persisted in self._persisted.values():
                persisted.set()
            while self._inspections:
                self._inspections.popleft()[1].set_result(None)
            for stream in self._streams.values():
                stream.put_nowait(None)

    def _dispatch(self, event: WorkerEvent) -> None:
        if isinstance(event, types.Persisted):
            self._persisted.pop(event.chat, asyncio.Event()).set()
            return
        if isinstance(event, Inspected):
            self._inspections.popleft()[1].set_result(
                event.snapshot
            )  # answers arrive in the order of the requests
            return
        request_id = getattr(event, "request_id", None)
        if (stream := self._streams.get(request_id)) is not None:
            stream.put_nowait(event)
        elif isinstance(event, _LAST_EVENTS) and request_id is not None:
            self._cancelled.discard(request_id)

    async def _crashed(self, when: str) -> EngineCrashed:
        code = await self._process.wait()
        reason, hint = _explain_exit(code)
        if self._garbled:
            reason = "it sent an invalid message, and was stopped"
        _LOG.error("engine process %d died %s (%s)", self._process.pid, when, reason)
        # llama.cpp aborts when it loses an RPC server.
        lost = await asyncio.to_thread(why_lost, self._servers, wait=code in _ABORTED)
        if lost:
            return RemoteWorkerLost(f"The model stopped {when}. {lost}", hint=_WITHOUT)
        return EngineCrashed(
            f"The engine process ended unexpectedly {when} ({reason}).",
            hint=f"{hint} Its log: {self.log}" if self.log is not None else hint,
            log_tail=tail(self.log),
        )

    async def close(self) -> None:
        """Close the pipe so that the worker exits, and kill it if it does not. May be called repeatedly."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        # A surviving child process of the worker would keep the pipe open.
        await asyncio.wait([self._reader], timeout=_CLOSE_SECONDS)
        self._reader.cancel()
        await asyncio.wait([self._reader])
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()


def closed() -> EngineClosed:
    """Return the error for a load that was stopped intentionally."""
    return EngineClosed("The engine was closed before the model was loaded.", hint="Start it again.")


def _explain_exit(code: int) -> tuple[str, str]:
    """Return how a process ended, and a hint for the user."""
    again = "The next message starts it again; the partial answer is kept."
    if code >= 0:
        return f"exit code {code}", again
    name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
    if name == "SIGILL":
        return "SIGILL: llama.cpp was built for another CPU", "`edgechat doctor` explains how to fix it."
    if name == "SIGKILL":
        name = "SIGKILL: killed by the system or a user, usually because memory ran out"
    return name, again


def open_log() -> tuple[Path | None, int]:
    """Open a new log in the log folder, or else in a temporary folder. If neither works, discard the log."""
    for folder in (paths.log_dir, lambda: Path(_temporary_folder().name)):
        with contextlib.suppress(OSError, FolderError):
            log = _new_log(folder())
            return log, paths.private(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    return None, os.open(os.devnull, os.O_WRONLY)


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="edgechat-log-")


def _new_log(folder: Path) -> Path:
    """Delete the oldest logs and return the path for a new one."""
    for old in sorted(folder.glob("engine-*.log"))[: -_LOGS_KEPT + 1]:
        writer = old.stem.rsplit("-", 1)[-1]
        # Keep logs that are in use: another app's worker may still be writing to them.
        with contextlib.suppress(OSError):
            if not (writer.isdigit() and psutil.pid_exists(int(writer))):
                old.unlink()
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}"
    return folder / f"engine-{stamp}-{os.getpid()}.log"


def tail(log: Path | None, n_bytes: int = _LOG_TAIL) -> str:
    """Return the end of a log as printable text, or '' if there is no log or it cannot be read."""
    if log is None:
        return ""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - n_bytes))
            return printable(stream.read().decode("utf-8", "replace"))
    except OSError:
        return ""
