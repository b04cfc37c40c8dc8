"""Starts `edgechat` by forking a process that has imported it already: imports are most of a short command.

What a command is given and leaves is as real as ever: its arguments, streams, folder, environment, children
and exit code. The forking process ends when its stdin does, so with the tests.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import select
import socket
import sys
import tempfile

from edgechat import __main__ as program
from edgechat.base.process import spawn
from edgechat.cli.main import run_cli
from tests.scripted import PROGRAM

_MODULES = (
    "edgechat.chat.storage.store",
    *(f"edgechat.cli.commands.{name}" for name in ("chats", "doctor", "listing", "models", "plan")),
    *(f"edgechat.cli.commands.{name}" for name in ("pull", "run", "show")),
    "edgechat.device.survey",
    "edgechat.engine.worker.supervisor",
    "edgechat.models.hub.download",
    "edgechat.planner.prepare",
)


def main() -> None:
    """Listen on the socket whose descriptor is the first argument; each connection is one command."""
    door = socket.socket(fileno=int(sys.argv[1]))
    spawn.PROGRAM = PROGRAM  # as tests/scripted/edgechat.py does
    program.ROLES["engine"] = "tests.scripted.worker"
    for name in _MODULES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as home, contextlib.redirect_stdout(io.StringIO()):
        os.environ["EDGECHAT_HOME"] = home
        sys.argv = ["edgechat", "chats"]
        run_cli()  # any command: typer imports something more for its first
    while 0 not in select.select([door, 0], [], [])[0]:
        connection, _ = door.accept()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork() == 0:
            door.close()
            _run(connection)
        connection.close()


def _run(connection: socket.socket) -> None:
    """In a process between: tell the number of the command's own process, and how it ended."""
    size, streams, *_ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as file:
        words, folder, variables = json.loads(file.read(int.from_bytes(size, "big")))
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        sys.argv = ["edgechat", *words]
        program.main()
    for stream in streams:
        os.close(stream)
    connection.sendall(child.to_bytes(4, "big"))
    _, status = os.waitpid(child, 0)
    connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
    os._exit(0)


if __name__ == "__main__":
    main()
