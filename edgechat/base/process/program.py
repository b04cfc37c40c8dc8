"""Runner for other programs: starts them, and ends them when edgechat itself ends for any reason.

A child process (`main`) sits between edgechat and the program: it starts the program in a separate process
group, limits the size of its log, and ends the group once its own stdin is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import BinaryIO

import msgspec
import psutil

from edgechat.base.process import frames, spawn

GRACE_SECONDS = 5.0
"""Seconds that the program may take to exit after being asked to."""
MOST_LOG = 4 * 2**20
"""Maximum size of the log in bytes; beyond it, the log is cleared and restarted."""
_KILL_SECONDS = 2.0
_POLL_SECONDS = 0.05
_NOT_STARTED = 127  # the exit code that shells use for a missing command


class ProgramStart(msgspec.Struct, frozen=True):
    """Request to the child to start a program."""

    command: tuple[str, ...]
    environment: dict[str, str]
    """All its environment variables; none are inherited."""


class Program:
    """A running program. It belongs to one event loop and must be closed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, start: ProgramStart, log: int) -> Program:
        """Start the program. Raises OSError.

        log: a descriptor opened for appending, which receives the output. A program that cannot be started
        counts as ended, and the log says why.
        """
        options = spawn.options(log) | {"stdout": subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(*spawn.command("program"), **options)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(frames.pack(msgspec.msgpack.encode(start)))
            await process.stdin.drain()
        return cls(process)

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative if a signal ended the program; None while it is running."""
        code = self._process.returncode
        if code is None or sys.platform == "win32" or not 128 < code < 255:
            return code
        return 128 - code

    async def close(self) -> None:
        """End the program and all processes in its group. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), GRACE_SECONDS + 2 * _KILL_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def main() -> None:
    """In the child: start a program, and end it when the parent ends."""
    incoming = os.fdopen(os.dup(0), "rb")
    payload = frames.read(incoming)
    if payload is None:
        return
    start = msgspec.msgpack.decode(payload, type=ProgramStart)
    group = spawn.options(subprocess.STDOUT) | {"stdin": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(start.command, env=start.environment, **group)
    except OSError as error:
        _write(f"{start.command[0]} cannot be started: {error.strerror}\n".encode("utf-8", "replace"))
        os._exit(_NOT_STARTED)
    log = threading.Thread(target=_log, args=(process.stdout,), daemon=True)
    log.start()
    threading.Thread(target=_end_with_parent, args=(incoming, process), daemon=True).start()
    code = process.wait()
    kill_group(process.pid, psutil.Process().children(recursive=True))
    log.join(_KILL_SECONDS)
    if sys.platform == "win32":  # where exit codes are unsigned, and `_exit` takes a signed number
        code = ctypes.c_int(code).value
    elif code < 0:
        code = 128 - code
    os._exit(code)  # a thread is still waiting for the parent


def _end_with_parent(incoming: BinaryIO, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, frames.BrokenFrame):
        while frames.read(incoming) is not None:
            pass
    # Descendants in other groups can be found only while their parents are alive.
    started = psutil.Process().children(recursive=True)
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGTERM)
    end = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        time.sleep(_POLL_SECONDS)
    kill_group(process.pid, started)


def kill_group(group: int | None, processes: Iterable[psutil.Process]) -> None:
    """Kill the processes and, except on Windows, the process group."""
    if group is not None and sys.platform != "win32":
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _log(output: BinaryIO) -> None:
    """Copy the program's output to the log, clearing the log when it gets too long."""
    room = MOST_LOG
    while data := os.read(output.fileno(), 65536):
        if len(data) > room:
            room = MOST_LOG
            with contextlib.suppress(OSError):
                os.ftruncate(2, 0)
        room -= len(data)
        _write(data)


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError):  # if the disk is full, only the log is lost
        os.write(2, data)
