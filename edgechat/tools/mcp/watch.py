"""In the child: what ends it, and its server, whatever the server does. Runs in threads of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import psutil

from edgechat.base.process.child import resident_bytes

_MEMORY = 512 * 2**20
"""Of the child. The SDK alone takes some 80 MiB."""
_POLL_SECONDS = 1.0
_BUSY_WINDOW, _BUSY_SECONDS = 10.0, 4.0
"""A child that computes for so long in such a time is being flooded, or is caught in a schema."""
GRACE_SECONDS = 1.5
"""For a server to end by itself, once its input is closed."""
_LOG_BYTES = 2**20
_TAIL_BYTES, _TAIL_SECONDS = 2048, 0.3


class Watch:
    """Ends the child when it takes too much, or its server has ended."""

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        """on_lost: is told why, once; the text completes 'The tool server NAME ...'."""
        self._on_lost = on_lost
        self._server: int | None = None
        self._ending = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="watch").start()

    def server_started(self, pid: int) -> None:
        """Watch the process of the server."""
        self._server = pid

    def end(self, why: str) -> NoReturn:
        """End the server and this process, at once."""
        with self._ending:
            self._on_lost(why)
            self._kill()
            os._exit(0)

    def end_soon(self) -> None:
        """End both unless they end by themselves: the program is gone, or wants no more."""
        timer = threading.Timer(GRACE_SECONDS, self._kill_and_exit)
        timer.daemon = True
        timer.start()

    def _kill_and_exit(self) -> NoReturn:
        self._kill()
        os._exit(0)

    def _kill(self) -> None:
        processes = psutil.Process().children(recursive=True)
        if self._server is not None and sys.platform != "win32":  # where a job ends with its owner
            with contextlib.suppress(OSError):
                os.killpg(self._server, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _run(self) -> None:
        used = deque[tuple[float, float]]()
        while True:
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            used.append((now, time.process_time()))
            while now - used[0][0] > _BUSY_WINDOW:
                used.popleft()
            if used[-1][1] - used[0][1] > _BUSY_SECONDS:
                self.end("sends more than edgechat can read, and was ended")
            if resident_bytes(os.getpid()) > _MEMORY:
                self.end(f"made edgechat take more than {_MEMORY // 2**20} MiB of memory, and was ended")
            if self._server is not None and not psutil.pid_exists(self._server):
                self.end("has ended")


class ServerLog:
    """What a server writes to stderr: the beginning of it for this process's own, its end for messages."""

    def __init__(self) -> None:
        self._tail = b""
        self._source, self.descriptor = os.pipe()
        """The second is what the server writes to; whoever starts it closes it."""
        self._reader = threading.Thread(target=self._run, daemon=True, name="log")
        self._reader.start()

    def tail(self) -> str:
        """Return the end of what it wrote; of a server that has ended, all of the end."""
        self._reader.join(_TAIL_SECONDS)
        return self._tail.decode("utf-8", "replace")

    def _run(self) -> None:
        room = _LOG_BYTES
        while data := os.read(self._source, 65536):
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            if room > 0:
                with contextlib.suppress(OSError):
                    os.write(2, data[:room])
                room -= len(data)
