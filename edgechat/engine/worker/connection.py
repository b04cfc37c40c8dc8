"""One life of the worker process: its pipe, the streams of its requests, and why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import cache
from pathlib import Path

import msgspec
import psutil

from edgechat.base import paths
from edgechat.base.errors import EngineClosed, EngineCrashed, FolderError
from edgechat.base.process import frames, spawn
from edgechat.base.text import printable
from edgechat.device.memory import oom_kills
from edgechat.engine.snapshot import Snapshot
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Delta,
    Dropped,
    Embed,
    Embedded,
    Failed,
    Finished,
    ModelInfo,
    Persisted,
    Prefill,
    RequestEvent,
    Timings,
    ToolCallArguments,
    ToolCallBegun,
    Translate,
    Translated,
    Usage,
)
from edgechat.engine.worker.messages import (
    Cancel,
    Command,
    Generate,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Loading,
    Persist,
    WorkerEvent,
)
from edgechat.planner.plan import LoadPlan

_LOG = logging.getLogger(__name__)
_LOGS_KEPT = 10
_LOG_TAIL = 4096
_GOODBYE = 2.0
_SIGKILL = 9  # signal.SIGKILL, which Windows does not have


class WorkerConnection:
    """One life of the worker process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        log: Path | None,
        on_end: Callable[[WorkerConnection], None],
    ) -> None:
        self.victims: set[str] = set()
        """The requests that were running when it died."""
        self._process = process
        self._on_end = on_end
        self._closing = False
        self._garbled = False
        self._abandoned: set[str] = set()
        self.log = log
        """What the process writes to its stderr; None where no disk takes that."""
        self._oom_kills = oom_kills()
        self._encoder = msgspec.msgpack.Encoder()
        self._streams: dict[str | None, asyncio.Queue[WorkerEvent | None]] = {}
        self._left: dict[str | None, asyncio.Event] = {}
        self._looks: deque[tuple[str | None, asyncio.Future[Snapshot | None]]] = deque()
        self._loading = self._open(None)
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def spawn(cls, on_end: Callable[[WorkerConnection], None]) -> WorkerConnection:
        """Start the process; its stderr goes to a log file of its own."""
        log, handle = _opened_log()
        try:
            process = await asyncio.create_subprocess_exec(*spawn.command("engine"), **spawn.options(handle))
        finally:
            os.close(handle)
        _LOG.info("engine process %d is started; its log: %s", process.pid, log)
        return cls(process, log, on_end)

    @property
    def lost_its_memory(self) -> bool:
        """Whether the system killed it because memory ran out, as far as the system tells."""
        killed = not self._closing and not self._garbled and self._process.returncode == -_SIGKILL
        return killed and (self._oom_kills is None or oom_kills() != self._oom_kills)

    @property
    def alive(self) -> bool:
        """Whether events may still come."""
        return not self._reader.done()

    async def load(
        self, plan: LoadPlan, cache_policy: CachePolicy, on_progress: Callable[[float], None] | None
    ) -> ModelInfo:
        """Load the model and wait for it. Raises EngineClosed where `close` ends that."""
        self.send(Load(plan, cache_policy))
        while True:
            match await self._loading.get():
                case Loading(progress):
                    if on_progress is not None:
                        on_progress(progress)
                case Loaded(model):
                    _LOG.info("%s is loaded by %s in %.0f ms", model.name, model.backend, model.load_ms)
                    return model
                case Failed() | None if self._closing:
                    raise closed()
                case Failed(_, error):
                    raise error.error()
                case None:
                    raise await self._crashed("while loading the model")

    async def stream(self, request: ChatRequest) -> AsyncGenerator[RequestEvent, None]:
        """Send a request and yield its events."""
        if request.id in self._streams or request.id in self._abandoned:
            raise ValueError(f"request {request.id} is running already")
        events = self._open(request.id)
        finished = False
        try:
            self.send(Generate(request))
            while not finished:
                match await events.get():
                    case Dropped() | Prefill() | Delta() | ToolCallBegun() | ToolCallArguments() as event:
                        yield event
                    case Finished() as event:
                        finished = True
                        yield event
                    case Failed(_, error):
                        finished = True
                        raise error.error()
                    case None if self._closing:
                        finished = True
                        yield cancelled(request.id)
                    case None:
                        finished = True
                        raise await self._crashed("during an answer")
        finally:
            del self._streams[request.id]
            if not finished:
                self._abandoned.add(request.id)
                self.send(Cancel(request.id))

    async def embed(self, request: Embed) -> Embedded | None:
        """Send texts and return what became of them; None where that was cancelled, or the worker closed."""
        event = await self._asked(request, "while computing embeddings")
        return event if isinstance(event, Embedded) else None

    async def translate(self, request: Translate) -> Translated | None:
        """The same for a text and its tokens."""
        event = await self._asked(request, "while tokenizing a text")
        return event if isinstance(event, Translated) else None

    async def _asked(self, request: Embed | Translate, when: str) -> WorkerEvent | None:
        """Send what has one answer, and return it; None where the worker was closed."""
        events = self._open(request.request_id)
        finished = False
        try:
            self.send(request)
            event = await events.get()
            finished = True
            if isinstance(event, Failed):
                raise event.error.error()
            if event is None and not self._closing:
                raise await self._crashed(when)
            return event
        finally:
            del self._streams[request.request_id]
            if not finished:
                self._abandoned.add(request.request_id)
                self.send(Cancel(request.request_id))

    async def persist(self, chat: str | None, seconds: float) -> None:
        """Have a chat's state (None: every chat's) put on disk; wait so long for it at most."""
        left = self._left.setdefault(chat, asyncio.Event())
        self.send(Persist(chat))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(left.wait(), seconds)

    async def inspect(self, chat: str | None, seconds: float) -> Snapshot | None:
        """Return what the engine does and knows; None where it dies, or does not answer for so long.

        Nobody is asked twice: while an answer is awaited, who asks the same waits for that one.
        """
        if not self.alive:
            return None
        look = next((future for asked, future in self._looks if asked == chat), None)
        if look is None:
            look = asyncio.get_running_loop().create_future()
            self._looks.append((chat, look))
            self.send(Inspect(chat))
        done, _ = await asyncio.wait([look], timeout=seconds)
        return look.result() if done else None

    def send(self, command: Command) -> None:
        """Write a command; a pipe that is broken shows itself in the reader."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(frames.pack(self._encoder.encode(command)))

    def _open(self, request_id: str | None) -> asyncio.Queue[WorkerEvent | None]:
        events: asyncio.Queue[WorkerEvent | None] = asyncio.Queue()
        if request_id is not None and not self.alive:
            events.put_nowait(None)
        self._streams[request_id] = events
        return events

    async def _read(self) -> None:
        """Hand each event to its stream until the worker's end, then tell every stream of the end."""
        assert self._process.stdout is not None
        decoder = msgspec.msgpack.Decoder(list[WorkerEvent])
        try:
            while True:
                size = frames.length(await self._process.stdout.readexactly(frames.HEADER.size))
                for event in decoder.decode(await self._process.stdout.readexactly(size)):
                    self._hand_on(event)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (frames.BrokenFrame, msgspec.DecodeError):
            self._garbled = True  # it no longer speaks our language: nothing it says can be trusted
            self._process.kill()
        finally:
            self.victims = {name for name in self._streams if name is not None}
            self._on_end(self)
            for left in self._left.values():
                left.set()
            while self._looks:
                self._looks.popleft()[1].set_result(None)
            for stream in self._streams.values():
                stream.put_nowait(None)

    def _hand_on(self, event: WorkerEvent) -> None:
        if isinstance(event, Persisted):
            self._left.pop(event.chat, asyncio.Event()).set()
            return
        if isinstance(event, Inspected):
            self._looks.popleft()[1].set_result(event.snapshot)  # answers come in the order of the questions
            return
        name = getattr(event, "request_id", None)
        if (stream := self._streams.get(name)) is not None:
            stream.put_nowait(event)
        elif isinstance(event, Finished | Failed | Embedded | Translated) and name is not None:
            self._abandoned.discard(name)

    async def _crashed(self, when: str) -> EngineCrashed:
        code = await self._process.wait()
        reason, hint = _explain(code)
        if self._garbled:
            reason = "it sent an invalid message, and was stopped"
        _LOG.error("engine process %d died %s (%s)", self._process.pid, when, reason)
        return EngineCrashed(
            f"The engine process ended unexpectedly {when} ({reason}).",
            hint=f"{hint} Its log: {self.log}" if self.log is not None else hint,
            log_tail=tail(self.log) if self.log is not None else "",
        )

    async def close(self) -> None:
        """Close the pipe, which ends the worker; kill it if it does not heed that. May be called again."""
        self._closing = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _GOODBYE)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        # A child of the worker's that lives on would hold the pipe open.
        await asyncio.wait([self._reader], timeout=_GOODBYE)
        self._reader.cancel()
        await asyncio.wait([self._reader])
        transport = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()


def closed() -> EngineClosed:
    """Return the error of a load that was ended on purpose."""
    return EngineClosed("The engine was closed before the model was loaded.", hint="Start it again.")


def cancelled(request_id: str) -> Finished:
    """Return the end of a request that a worker never answered."""
    return Finished(request_id, "cancelled", Usage(0, 0, 0), Timings(0.0, 0.0, 0.0))


def _explain(code: int) -> tuple[str, str]:
    """Return in words how a process ended, and what to do about it."""
    again = "The next message starts it again; the partial answer is kept."
    if code >= 0:
        return f"exit code {code}", again
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        if name == "SIGKILL":
            return "SIGKILL: killed by the system or a user, usually because memory ran out", again
        if name == "SIGILL":
            hint = "`edgechat doctor` explains how to fix it."
            return "SIGILL: llama.cpp was built for another CPU", hint
        return name, again
    return f"signal {-code}", again


def _opened_log() -> tuple[Path | None, int]:
    """Open a new log: in our folder, in one that goes with this process, or (None) nowhere."""
    for folder in (paths.log_dir, _makeshift):
        with contextlib.suppress(OSError, FolderError):
            log = _new_log(folder())
            return log, paths.private(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    return None, os.open(os.devnull, os.O_WRONLY)


def _makeshift() -> Path:
    return Path(_temporary_folder().name)


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="edgechat-log-")


def _new_log(folder: Path) -> Path:
    """Return the path of a new log, and delete the oldest."""
    for old in sorted(folder.glob("engine-*.log"))[: -_LOGS_KEPT + 1]:
        writer = old.stem.rsplit("-", 1)[-1]
        # A log in use stays: another app's worker may still have something to say.
        with contextlib.suppress(OSError):
            if not (writer.isdigit() and psutil.pid_exists(int(writer))):
                old.unlink()
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}"
    return folder / f"engine-{stamp}-{os.getpid()}.log"


def tail(log: Path, n_bytes: int = _LOG_TAIL) -> str:
    """Return the end of a log, printable; '' where there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - n_bytes))
            return printable(stream.read().decode("utf-8", "replace"))
    except OSError:
        return ""
