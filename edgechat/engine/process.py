"""The front end's side of the worker process: start it, stream from it, survive its death.

One EngineProcess stands for one model. Its worker comes with the first request and goes when it has been
idle for a while, which gives all its memory back; the next request brings a new one. A crash is the same
thing without the idle time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from enum import Enum
from pathlib import Path

import msgspec
import psutil

from edgechat import frames, paths, spawn
from edgechat.engine.types import (
    Cancel,
    ChatRequest,
    Command,
    Delta,
    Event,
    Failed,
    Finished,
    Generate,
    Load,
    Loaded,
    Loading,
    ModelInfo,
    Prefill,
    RequestEvent,
    Timings,
    Usage,
)
from edgechat.errors import EngineCrashed, EngineError, RequestRefused
from edgechat.planner.plan import LoadPlan
from edgechat.text import printable

_CRASHES_ALLOWED = 2
_LOGS_KEPT = 10
_LOG_TAIL = 4096
_GOODBYE = 2.0


class EngineState(Enum):
    """What the worker does, for a front end to show."""

    STOPPED = "stopped"
    LOADING = "loading"
    READY = "ready"


class EngineProcess:
    """A model in a worker process. Belongs to one event loop."""

    def __init__(
        self,
        plan: LoadPlan,
        *,
        idle_seconds: float = 600.0,
        on_state: Callable[[EngineState], None] | None = None,
    ) -> None:
        """`idle_seconds` 0 keeps an idle worker."""
        self.plan = plan
        self.model: ModelInfo | None = None
        self.state = EngineState.STOPPED
        self._idle_seconds = idle_seconds
        self._on_state = on_state
        self._worker: _Worker | None = None
        self._changing = asyncio.Lock()
        self._closed = False
        self._users = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_stop: asyncio.Task[None] | None = None
        self._loading: set[str] = set()
        self._cancelled: set[str] = set()
        self._crashes: Counter[bytes] = Counter()

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        """Load the model if it is not loaded. Raises LoadFailed or EngineCrashed."""
        with self._in_use():
            await self._ready(on_progress)
            assert self.model is not None
            return self.model

    async def stream(
        self, request: ChatRequest, on_progress: Callable[[float], None] | None = None
    ) -> AsyncGenerator[RequestEvent, None]:
        """Yield Prefill and Delta events, and at last Finished.

        Starts a worker if there is none (`on_progress` hears of the load). Raises EngineCrashed when the
        worker dies, RequestRefused if this same request has killed it twice, or what the engine says.
        Leaving the iteration early cancels the request.
        """
        digest = _digest(request)
        if self._crashes[digest] >= _CRASHES_ALLOWED:
            raise RequestRefused(
                f"This message has crashed the engine {self._crashes[digest]} times and is not tried again.",
                hint="Change the message, or choose another model.",
            )
        with self._in_use():
            worker = await self._ready_for(request.id, on_progress)
            if worker is None:
                yield _cancelled(request.id)
                return
            try:
                # aclosing: an abandoned generator would be closed, and cancelled, by the garbage collector.
                async with contextlib.aclosing(worker.stream(request)) as events:
                    async for event in events:
                        yield event
            except EngineCrashed:
                # With others beside it nobody knows whose fault it was.
                self._crashes[digest] += worker.victims == {request.id}
                raise

    async def cancel(self, request_id: str) -> None:
        """Ask for a request to stop: its stream ends with reason 'cancelled', also while the model loads."""
        if request_id in self._loading:
            self._cancelled.add(request_id)
        elif self._worker is not None:
            self._worker.send(Cancel(request_id))

    async def close(self) -> None:
        """End the worker, and with it every stream (reason 'cancelled'); the engine is of no more use."""
        self._closed = True
        self._forget_timer()
        if self._worker is not None:
            await self._worker.close()  # a load that is under way ends with it
        async with self._changing:
            await self._end_worker()

    async def _ready_for(
        self, request_id: str, on_progress: Callable[[float], None] | None
    ) -> _Worker | None:
        """Return the worker; None if the request was cancelled while the model was loading."""
        self._loading.add(request_id)
        try:
            worker = await self._ready(on_progress)
            return None if request_id in self._cancelled else worker
        finally:
            self._loading.discard(request_id)
            self._cancelled.discard(request_id)

    async def _ready(self, on_progress: Callable[[float], None] | None) -> _Worker:
        async with self._changing:
            if self._worker is not None and self._worker.alive and self.state is EngineState.READY:
                return self._worker
            await self._end_worker()
            self._become(EngineState.LOADING)
            try:
                self._worker = await _Worker.spawn(self._worker_ended)
                if self._closed:
                    raise EngineError("The engine has been closed.", hint="Start it again.")
                self.model = await self._worker.load(self.plan, on_progress)
            except BaseException:
                await self._end_worker()
                raise
            self._become(EngineState.READY)
            return self._worker

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        self._users += 1
        self._forget_timer()
        try:
            yield
        finally:
            self._users -= 1
            if not self._users and self._idle_seconds > 0 and not self._closed:
                loop = asyncio.get_running_loop()
                self._idle_timer = loop.call_later(self._idle_seconds, self._went_idle)

    def _went_idle(self) -> None:
        self._idle_stop = asyncio.ensure_future(self._stop_unless_used())

    async def _stop_unless_used(self) -> None:
        async with self._changing:
            if not self._users:
                await self._end_worker()

    def _forget_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()
        self._become(EngineState.STOPPED)

    def _worker_ended(self, worker: _Worker) -> None:
        if worker is self._worker and self.state is EngineState.READY:
            self._become(EngineState.STOPPED)

    def _become(self, state: EngineState) -> None:
        if state is not self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)


class _Worker:
    """One life of the worker process."""

    def __init__(
        self, process: asyncio.subprocess.Process, log: Path, on_end: Callable[[_Worker], None]
    ) -> None:
        self.victims: set[str] = set()
        """The requests that were running when it died."""
        self._process = process
        self._on_end = on_end
        self._closing = False
        self._garbled = False
        self._abandoned: set[str] = set()
        self._log = log
        self._encoder = msgspec.msgpack.Encoder()
        self._streams: dict[str | None, asyncio.Queue[Event | None]] = {}
        self._loading = self._open(None)
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def spawn(cls, on_end: Callable[[_Worker], None]) -> _Worker:
        """Start the process; its stderr goes to a log file of its own."""
        log = _new_log()
        with log.open("ab") as stream:
            process = await asyncio.create_subprocess_exec(*spawn.command("engine"), **spawn.options(stream))
        return cls(process, log, on_end)

    @property
    def alive(self) -> bool:
        """Whether events may still come."""
        return not self._reader.done()

    async def load(self, plan: LoadPlan, on_progress: Callable[[float], None] | None) -> ModelInfo:
        """Load the model and wait for it."""
        self.send(Load(plan))
        while True:
            match await self._loading.get():
                case Loading(progress):
                    if on_progress is not None:
                        on_progress(progress)
                case Loaded(model):
                    return model
                case Failed(_, error):
                    raise error.error()
                case None:
                    raise await self._crashed("while it loaded the model")

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
                    case Prefill() | Delta() as event:
                        yield event
                    case Finished() as event:
                        finished = True
                        yield event
                    case Failed(_, error):
                        finished = True
                        raise error.error()
                    case None if self._closing:
                        finished = True
                        yield _cancelled(request.id)
                    case None:
                        finished = True
                        raise await self._crashed("in the middle of an answer")
        finally:
            del self._streams[request.id]
            if not finished:
                self._abandoned.add(request.id)
                self.send(Cancel(request.id))

    def send(self, command: Command) -> None:
        """Write a command; a pipe that is broken shows itself in the reader."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, RuntimeError):
            self._process.stdin.write(frames.pack(self._encoder.encode(command)))

    def _open(self, request_id: str | None) -> asyncio.Queue[Event | None]:
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        if request_id is not None and not self.alive:
            events.put_nowait(None)
        self._streams[request_id] = events
        return events

    async def _read(self) -> None:
        """Hand each event to its stream until the worker's end, then tell every stream of the end."""
        assert self._process.stdout is not None
        decoder = msgspec.msgpack.Decoder(Event)
        try:
            while True:
                size = frames.length(await self._process.stdout.readexactly(frames.HEADER.size))
                event: Event = decoder.decode(await self._process.stdout.readexactly(size))
                name = getattr(event, "request_id", None)
                if (stream := self._streams.get(name)) is not None:
                    stream.put_nowait(event)
                elif isinstance(event, Finished | Failed) and name is not None:
                    self._abandoned.discard(name)
        except (asyncio.IncompleteReadError, OSError):
            pass
        except (frames.BrokenFrame, msgspec.DecodeError):
            self._garbled = True  # it no longer speaks our language: nothing it says can be trusted
            self._process.kill()
        finally:
            self.victims = {name for name in self._streams if name is not None}
            self._on_end(self)
            for stream in self._streams.values():
                stream.put_nowait(None)

    async def _crashed(self, when: str) -> EngineCrashed:
        code = await self._process.wait()
        reason, hint = _explain(code)
        if self._garbled:
            reason = "what it sent could not be understood, so it was stopped"
        return EngineCrashed(
            f"The engine's process died {when} ({reason}).",
            hint=f"{hint} Its log: {self._log}",
            log_tail=_tail(self._log),
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


def _cancelled(request_id: str) -> Finished:
    """Return the end of a request that the worker never answered."""
    return Finished(request_id, "cancelled", Usage(0, 0, 0), Timings(0.0, 0.0, 0.0))


def _explain(code: int) -> tuple[str, str]:
    """Return in words how a process ended, and what to do about it."""
    again = "The next message starts it anew, and what the app showed of the answer is kept."
    if code >= 0:
        return f"exit code {code}", again
    with contextlib.suppress(ValueError):
        name = signal.Signals(-code).name
        if name == "SIGKILL":
            return "SIGKILL: killed from outside, most often because memory ran out", again
        if name == "SIGILL":
            return "SIGILL: llama.cpp was built for another processor", "Reinstall llama-cpp-python."
        return name, again
    return f"signal {-code}", again


def _digest(request: ChatRequest) -> bytes:
    """Return what makes two requests the same work, whatever their ids."""
    anonymous = msgspec.structs.replace(request, id="")
    return hashlib.blake2b(msgspec.msgpack.encode(anonymous), digest_size=16).digest()


def _new_log() -> Path:
    """Return the path of a new log, and delete the oldest ones."""
    folder = paths.log_dir()
    for old in sorted(folder.glob("engine-*.log"))[: -_LOGS_KEPT + 1]:
        writer = old.stem.rsplit("-", 1)[-1]
        # A log in use stays: another app's worker may still have something to say.
        with contextlib.suppress(OSError):
            if not (writer.isdigit() and psutil.pid_exists(int(writer))):
                old.unlink()
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06d}"
    return folder / f"engine-{stamp}-{os.getpid()}.log"


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LOG_TAIL))
            return printable(stream.read().decode("utf-8", "replace"))
    except OSError:
        return ""
