"""The front end's side of a benchmark: starts its process, reports the progress, returns the report."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from edgechat.base.errors import EngineCrashed
from edgechat.base.process import frames, spawn
from edgechat.base.text import printable
from edgechat.bench.speed import Answer, BenchFailure, BenchProgress, BenchReport, BenchTask

_LOG_TAIL = 2048


def measure(task: BenchTask, tell: Callable[[str], None]) -> BenchReport:
    """Return what was measured, reporting progress to `tell`. Raises EdgechatError."""
    hint = "Try a shorter context (--ctx 2048), or `--draft none`."
    report: BenchReport = ask("bench", task, Answer, tell, hint)
    return report


def ask(role: str, task: msgspec.Struct, kinds: Any, tell: Callable[[str], None], hint: str) -> Any:
    """Return the answer to a task of a child process with that role, reporting progress to `tell`.

    kinds: the union of its messages. hint: what to do if the process ends early. It is killed in the end,
    whatever happens. Raises EdgechatError.
    """
    import subprocess  # 18 ms, which other commands need not pay

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
            pass  # the process has ended; the end of its log says why
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
