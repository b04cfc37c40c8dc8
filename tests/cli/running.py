"""The command as a program, for what several tests see of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.scripted import COMMAND
from tests.times import count_command

EDGECHAT = COMMAND
Run = subprocess.CompletedProcess[str]
TIME_LIMIT = 90


def edgechat(*words: str | Path, piped: str | None = None, **environment: str) -> Run:
    """Run `edgechat` with these words, in a process of its own; see tests/cli/forking.py."""
    command, variables = [*map(str, words)], os.environ | environment
    count_command()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write((piped or "").encode())
        stdin.seek(0)
        streams = [os.open(os.devnull, os.O_RDONLY) if piped is None else os.dup(stdin.fileno())]
        streams += [out.fileno(), err.fileno()]
        if sys.platform == "linux":
            code = _forked(command, variables, streams)
        else:  # where frameworks of the system may not be forked
            given = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            code = subprocess.call([*EDGECHAT, *command], env=variables, timeout=TIME_LIMIT, **given)
        os.close(streams[0])
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(command, code, *said)


def _forked(words: list[str], variables: dict[str, str], streams: list[int]) -> int:
    request = json.dumps([words, os.getcwd(), variables]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIME_LIMIT)
        connection.connect(_forking()[0])
        socket.send_fds(connection, [len(request).to_bytes(4, "big")], streams)
        connection.sendall(request)
        with connection.makefile("rb") as file:
            process = int.from_bytes(file.read(4), "big")
            try:
                return int.from_bytes(file.read(4), "big", signed=True)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                raise


@cache
def _forking() -> tuple[str, subprocess.Popen[bytes]]:
    """Start the process that forks commands; return where it listens, and the process."""
    path = os.path.join(tempfile.mkdtemp(), "edgechat")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.forking", str(door.fileno())],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,  # whose end, with this process, is its own
            stdout=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
        )
    return path, process


def complaint(run: Run, code: int = 1) -> str:
    """Return the message of a run that must have ended with one, and with no traceback."""
    assert run.returncode == code, run
    assert run.stdout == ""
    assert run.stderr.startswith("error: "), run.stderr
    assert "Traceback" not in run.stderr
    assert len(run.stderr.splitlines()) == 2, run.stderr  # what happened, and what to do next
    return run.stderr
