"""Child processes that answer a single request.

They do work that is too risky for a front end: measurements, and native code that may crash or hang in a
driver. Whatever happens to the child, the caller gets an answer or a ChildFailed within its time limit.
Whatever happens to the caller, the child exits.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable

from edgechat.base.process import frames, spawn
from edgechat.base.text import one_line

_LIFE = 120.0
"""Seconds after which a child exits by itself, even if it cannot detect that its parent is gone."""
_GRACE = 2.0
"""Seconds that native code has to return before an orphaned child exits anyway."""
_LOG_TAIL = 4096


class ChildFailed(Exception):
    """The child failed. The text completes 'The child ...', as in 'ended with exit code 1'."""


def ask(role: str, request: bytes = b"", *, limit: float) -> bytes:
    """Send a request to a child with this role, and return its answer.

    limit: the time limit in seconds. Raises ChildFailed.
    """
    import subprocess  # 18 ms, not needed by `edgechat --version`
    import tempfile

    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(spawn.command(role), **spawn.options(log.fileno()))
        except OSError as error:
            raise ChildFailed(f"could not be started: {error.strerror or error}") from error
        late = False
        try:
            output, _ = process.communicate(frames.pack(request), timeout=limit)
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            # It may have answered anyway: some drivers hang only at exit.
            output, _ = process.communicate()
        finally:
            process.kill()
            process.wait()
        with contextlib.suppress(frames.BrokenFrame):
            if (answer := frames.read(io.BytesIO(output))) is not None:
                return answer
        failure = f"did not respond within {limit:g} seconds" if late else _exit_reason(process.returncode)
        log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_TAIL))
        raise ChildFailed(failure + _last_line(log.read()))


def answer(work: Callable[[bytes], bytes]) -> None:
    """In a child: read the request, write the result of `work`, and exit at once."""
    import faulthandler
    import threading

    # This thread does not need the GIL, so it ends the process even if native code never returns.
    faulthandler.dump_traceback_later(_LIFE, exit=True)
    incoming, outgoing = spawn.adopt_pipe()
    request = frames.read(incoming)
    if request is None:
        return
    if sys.platform != "win32":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        threading.Thread(target=_end_unheard, args=(outgoing.fileno(),), daemon=True).start()
    outgoing.write(frames.pack(work(request)))
    sys.stderr.flush()
    # Skip cleanup, in which some drivers hang.
    os._exit(0)


def _end_unheard(pipe: int) -> None:
    """Exit once nobody can read the answer any longer, after removing temporary files."""
    import _thread
    import select

    answers = select.poll()
    answers.register(pipe, 0)  # report only when the other end is closed
    answers.poll()
    _thread.interrupt_main(signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(1)


def _exit_reason(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"ended with {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _last_line(log: bytes) -> str:
    lines = log.decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f" ({one_line(last, 160)})" if last else ""
