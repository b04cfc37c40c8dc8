"""Child processes that answer requests one at a time, with limits on time and memory.

They run code that may hang, use unbounded memory or abort the process, such as an untrusted template or a
native allocator. `Child.ask` returns an answer or, at its time limit, raises ChildLost.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from edgechat.base.errors import EngineError
from edgechat.base.process import frames, spawn

START_LIMIT = 20.0
"""Seconds that a child may take to get ready, including importing its libraries from a cold disk."""
_POLL_SECONDS = 0.02
_ORPHANED_AFTER = 60
"""Seconds after which a child still busy with an answer exits by itself; a live parent kills it earlier."""


class ChildLost(Exception):
    """The child crashed, hung or used too much memory, and was killed; the text completes 'it ...'."""


class ChildNeverReady(ChildLost):
    """The child was lost before its first request, so no request caused it."""


class Child:
    """The parent's side of a child process. Not thread-safe."""

    def __init__(self, role: str, *, log: BinaryIO | int | None = None) -> None:
        """Start the process, with its stderr connected to `log`. The process takes a moment to become ready.

        Raises ChildNeverReady if no process, thread or pipe can be created.
        """
        import subprocess  # 18 ms, not needed by `edgechat --version`

        stderr = subprocess.DEVNULL if log is None else log
        try:
            self._process: Any = subprocess.Popen(spawn.command(role), **spawn.options(stderr))
        except OSError as error:
            raise ChildNeverReady(f"could not be started ({error.strerror})") from error
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ready = False
        try:
            threading.Thread(target=self._read, daemon=True, name=role).start()
        except RuntimeError as error:
            self.close()
            raise ChildNeverReady(f"could not be started ({error})") from error

    @property
    def pid(self) -> int:
        """The process ID."""
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether the process is running. It may die between two requests."""
        return self._process.poll() is None

    def ask(self, question: bytes, *, seconds: float, memory: int) -> bytes:
        """Send a question and return the answer.

        Raises ChildLost if the child dies, or exceeds `seconds` or `memory` (in bytes).
        """
        try:
            if not self._ready:
                try:
                    self._answer(START_LIMIT, memory)
                except ChildLost as error:
                    raise ChildNeverReady(str(error)) from error
                self._ready = True
            try:
                self._process.stdin.write(frames.pack(question))
                self._process.stdin.flush()
            except (OSError, ValueError, frames.BrokenFrame) as error:
                is_dead = isinstance(error, BrokenPipeError)
                raise ChildLost("died" if is_dead else "could not be reached") from error
            return self._answer(seconds, memory)
        except ChildLost:
            self.close()
            raise

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # from flushing its buffer
                pipe.close()

    def _read(self) -> None:
        """Collect answers on a separate thread, so that waiting for them can time out."""
        with contextlib.suppress(OSError, ValueError, frames.BrokenFrame):
            while (payload := frames.read(self._process.stdout)) is not None:
                self._answers.put(payload)
        self._answers.put(None)

    def _answer(self, seconds: float, memory: int) -> bytes:
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(queue.Empty):
                payload = self._answers.get(timeout=_POLL_SECONDS)
                if payload is None:
                    raise ChildLost("died")
                return payload
            if time.monotonic() > deadline:
                raise ChildLost(f"was still running after {seconds:.0f} seconds")
            used = resident_bytes(self.pid)
            if used > memory:
                raise ChildLost(f"took {used // 2**20} MiB of memory")


class RestartingChild:
    """A child that is restarted for the next request if it has ended. It shares the parent's stderr.

    Any thread may start or close it.
    """

    def __init__(self, role: str, what: str, *, seconds: float, memory: int) -> None:
        """seconds, memory: limits for each answer. what: describes the child's purpose in error messages."""
        self._role, self._what = role, what
        self._seconds, self._memory = seconds, memory
        self._child: Child | None = None
        self._lock = threading.Lock()

    def start(self) -> Child:
        """Start the child unless it is running, and return it. Raises EngineError."""
        with self._lock:
            if self._child is not None and not self._child.alive:
                self._child.close()
                self._child = None
            if self._child is None:
                try:
                    self._child = Child(self._role, log=sys.stderr.fileno())
                except ChildNeverReady as lost:
                    raise self._never_ready(lost) from lost
            return self._child

    def ask(self, question: bytes) -> bytes:
        """Send a question and return the answer.

        Raises ChildLost, or EngineError if the child did not start.
        """
        try:
            return self.start().ask(question, seconds=self._seconds, memory=self._memory)
        except ChildNeverReady as lost:
            raise self._never_ready(lost) from lost

    def _never_ready(self, lost: ChildNeverReady) -> EngineError:
        return EngineError(
            f"The process for {self._what} did not start: it {lost}.",
            hint="Try again. If it fails again, please report this error, with the engine's log.",
        )

    def close(self) -> None:
        """Kill the child."""
        with self._lock:
            if self._child is not None:
                self._child.close()
                self._child = None


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, or 0 if it has ended."""
    if os.path.exists("/proc/self/statm"):
        try:
            return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0
    import psutil  # 15 ms, not needed on Linux

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def limit_memory(n_bytes: int) -> None:
    """In the child: limit the address space to `n_bytes`, so that allocations beyond it fail.

    Windows has no such limit and macOS rejects it; on both, only the parent watches memory.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def serve(
    pipes: tuple[BinaryIO, BinaryIO], answer: Callable[[bytes], bytes], *, seconds: int = _ORPHANED_AFTER
) -> NoReturn:
    """In the child: report readiness, answer requests until the parent is gone, then exit.

    Also exits if an answer takes longer than `seconds`: native code may be blocking the thread that would
    notice that the parent is gone.
    """
    import faulthandler

    incoming, outgoing = pipes
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(incoming, questions), daemon=True, name="questions").start()
    frames.write(outgoing, b"")
    while True:
        question = questions.get()
        faulthandler.dump_traceback_later(seconds, exit=True)
        payload = answer(question)
        faulthandler.cancel_dump_traceback_later()
        frames.write(outgoing, payload)


def _listen(incoming: BinaryIO, questions: queue.SimpleQueue[bytes]) -> None:
    try:
        while (question := frames.read(incoming)) is not None:
            questions.put(question)
    finally:  # the parent is gone, so nobody needs the current answer
        os._exit(0)
