"""Long tasks in child processes that report progress: the code for both sides."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

import msgspec

from edgechat.base.errors import EdgechatError, EngineCrashed, EngineError
from edgechat.base.process import frames, spawn
from edgechat.base.text import printable
from edgechat.engine.types import ErrorInfo

_LOG_TAIL = 2048

Tell = Callable[[str], None]
_Task = TypeVar("_Task", bound=msgspec.Struct)


class BenchProgress(msgspec.Struct, frozen=True, tag=True):
    """A progress report: the step that has just started."""

    text: str


class BenchFailure(msgspec.Struct, frozen=True, tag=True):
    """The error that made the task fail."""

    error: ErrorInfo


def ask(role: str, task: msgspec.Struct, kinds: Any, tell: Tell, hint: str) -> Any:
    """Start a child process in this role, send it a task and return its answer. Raises EdgechatError.

    kinds: the union of all message types that the child can send. tell: called with each progress report.
    hint: advice for the user if the child exits early. The child process never outlives this call.
    """
    with tempfile.TemporaryFile() as log:
        process: Any = subprocess.Popen(spawn.command(role), **spawn.options(log))
        try:
            process.stdin.write(frames.pack(msgspec.msgpack.encode(task)))
            process.stdin.flush()
            decoder = msgspec.msgpack.Decoder(kinds)
            while (payload := frames.read(process.stdout)) is not None:
                match decoder.decode(payload):
                    case BenchProgress(text):
                        tell(text)
                    case BenchFailure(error):
                        raise error.error()
                    case found:
                        return found
        except (OSError, frames.BrokenFrame, msgspec.DecodeError):
            pass  # the process has exited; its log says why
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
        raise EngineCrashed(
            f"The benchmark's process ended early (exit code {process.returncode}).{_log_end(log)}",
            hint=hint,
        )


def _log_end(log: BinaryIO) -> str:
    size = log.seek(0, 2)
    log.seek(max(0, size - _LOG_TAIL))
    lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f" Its last output: {printable(lines[-1])[:300]}" if lines else ""


def answer(kind: type[_Task], work: Callable[[_Task, Tell], msgspec.Struct]) -> None:
    """Receive a task of this kind, run `work` on it, and send back the result or the error.

    Called in a child process.
    """
    incoming, outgoing = spawn.adopt_pipe()
    faulthandler.enable()
    payload = frames.read(incoming)
    if payload is None:
        return
    task = msgspec.msgpack.decode(payload, type=kind)
    threading.Thread(target=_end_with_parent, args=(incoming,), daemon=True).start()

    def send(message: msgspec.Struct) -> None:
        frames.write(outgoing, msgspec.msgpack.encode(message))

    try:
        send(work(task, lambda text: send(BenchProgress(text))))
    except EdgechatError as error:
        send(BenchFailure(ErrorInfo.of(error)))
    except Exception as error:
        traceback.print_exc()
        send(BenchFailure(ErrorInfo.of(EngineError(f"The benchmark failed: {error!r}"))))


def _end_with_parent(incoming: BinaryIO) -> None:
    incoming.read()
    os._exit(0)
