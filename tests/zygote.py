"""Starts edgechat's processes in 5 ms on Linux, by forking a process that has done the imports.

In a test, a child spends most of its life on imports: 0.4 s for a worker. Here, `subprocess` asks a zygote to
run the commands that start edgechat, or children of it that import much. The zygote clones itself with
CLONE_PARENT, so that the new process is a child of the one that asked: its parent, exit code, signals,
streams, folder, environment and command line are real. Only its memory is inherited instead of loaded. These
are started normally:

- other programs, and children that import little;
- commands that use options of Popen other than streams, folder, environment and session;
- commands whose environment changes how Python itself starts (PYTHON..., LD_..., the locale);
- everything in a test marked `fresh`.

A command started this way forks a zygote for its own children before it has any threads. A zygote ends when
the other end of its socket is closed. If it crashes, every further start fails, and the test run ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from edgechat.base.process.spawn import ROLE_FLAG

_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_CLONE_PARENT = 0x8000
AVAILABLE = sys.platform == "linux" and _CLONE is not None and hasattr(subprocess, "_fork_exec")
_ROOT = Path(__file__).parents[1]
_SCRIPTED = str(_ROOT / "tests" / "scripted" / "edgechat.py")
_ROLES = (
    *("engine", "dryrun", "speed", "quality", "bench", "quantize"),
    *("template", "grammar", "image", "sound", "projector", "devices", "mcp"),
)
"""Children that import much. Others start as fast without a zygote, and some must use little memory."""
_MODULES = (
    "PIL.Image",
    *(f"PIL.{name}ImagePlugin" for name in ("Bmp", "Gif", "Jpeg", "Png", "WebP")),
    "edgechat.base.images.decoding_child",
    "edgechat.chat.storage.store",
    "edgechat.cli.main",
    *(
        f"edgechat.cli.commands.{name}"
        for name in ("chats", "device", "doctor", "documents", "mcp", "models", "plan", "pull", "show")
    ),
    "edgechat.cli.chat.run",
    "edgechat.device.survey",
    "edgechat.engine.prompt.template_child",
    "edgechat.engine.reply.grammar_child",
    "edgechat.engine.worker.supervisor",
    "edgechat.models.hub.download",
    "edgechat.native.accelerators.devices",
    "edgechat.native.multimodal.probe",
    "edgechat.base.sound.decoding_child",
    "edgechat.planner.estimate.dry_run_child",
    "edgechat.planner.prepare",
    "edgechat.tools.mcp.child",
    "jinja2.ext",
    "jinja2.sandbox",
    "llama_cpp",
    "llama_cpp.mtmd_cpp",
    "llguidance",
    "mcp",
    "tests.scripted.worker",
)
_INTERPRETER = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GGML_", "LLAMA_", "MTMD_")
_ROOM = 4096
"""Maximum length of a child's command line: the size of the one that the zygote was started with."""


class ZygoteLost(BaseException):
    """The zygote crashed. Not an Exception, which could be mistaken for a failure of the requested child."""


class Zygote:
    """The requesting side; each process has one."""

    fresh = False
    """Whether to start everything normally for now."""
    started = 0
    """Number of children started."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._connection = connection
        self._process = process
        self._is_ready = process is None
        self._lock = threading.Lock()

    def start(self, request: Mapping[str, Any], streams: list[int]) -> int:
        """Return the id of the new process, which closes the last stream once it is set up.

        Raises ZygoteLost.
        """
        payload = json.dumps(request).encode()
        try:
            with self._lock:
                if not self._is_ready and _read(self._connection, 1) is None:
                    raise ZygoteLost(self._obituary())
                self._is_ready = True
                socket.send_fds(self._connection, [len(payload).to_bytes(4, "big")], streams)
                self._connection.sendall(payload)
                answer = _read(self._connection, 4)
        except OSError as error:
            raise ZygoteLost(self._obituary()) from error
        if answer is None:
            raise ZygoteLost(self._obituary())
        self.started += 1
        return int.from_bytes(answer, "big")

    def lost(self) -> str | None:
        """Return how the zygote ended, or None if it is running."""
        ended = self._process is not None and self._process.poll() is not None
        return self._obituary() if ended else None

    def _obituary(self) -> str:
        code = None if self._process is None else self._process.wait(10)
        return f"The zygote of the tests (tests/zygote.py) ended with {code}; its stderr tells why."


ours: Zygote | None = None
"""The zygote of this process."""


def pytest_collection_finish(session: Any) -> None:
    """Start a zygote in each process that runs tests."""
    global ours
    options = session.config.option
    if ours is None and not options.collectonly and not getattr(options, "numprocesses", None):
        ours = install()


def pytest_runtest_setup(item: Any) -> None:
    """Let tests marked `fresh` start their programs normally."""
    if ours is not None:
        ours.fresh = item.get_closest_marker("fresh") is not None


def pytest_runtest_teardown(item: Any) -> None:
    """End the run if the zygote has crashed."""
    if ours is not None and (lost := ours.lost()):
        item.session.shouldfail = lost


def install() -> Zygote | None:
    """Start a zygote for this process and make `subprocess` use it; return None if it is unavailable."""
    if not AVAILABLE:
        return None
    mine, its = socket.socketpair()
    command = [sys.executable, "-P", __file__, str(its.fileno()), "-" * _ROOM]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[its.fileno()], env=variables
    )
    its.close()
    zygote = Zygote(mine, process)
    _hook(zygote)
    return zygote


def _hook(zygote: Zygote) -> None:
    original = subprocess._fork_exec
    interpreter = _of_the_interpreter(os.environ)

    def fork_exec(*given: Any) -> int:
        args, _, close_fds, kept, cwd, env, stdin, _, _, stdout, _, stderr, *others = given
        _, exec_pipe, _, session, *special = others
        words = [os.fsdecode(word) for word in args]
        # Only Popen's own pipe is inherited; group, gid, gids, uid, umask and preexec_fn have their defaults.
        plain = close_fds and len(kept) == 1 and special[:6] == [-1, None, None, None, -1, None]
        if zygote.fresh or not plain or not _is_ours(words) or (cwd is not None and not os.path.isdir(cwd)):
            return original(*given)
        variables = os.environ if env is None else dict(os.fsdecode(pair).split("=", 1) for pair in env)
        if _of_the_interpreter(variables) != interpreter:
            return original(*given)
        streams = [default if one == -1 else one for default, one in enumerate((stdin, stdout, stderr))]
        request = {
            "words": words,
            "folder": os.getcwd() if cwd is None else os.fsdecode(cwd),
            "variables": dict(variables),
            "session": bool(session),
            "umask": _umask(),
        }
        return zygote.start(request, [*streams, exec_pipe])

    subprocess._fork_exec = fork_exec


def _is_ours(words: list[str]) -> bool:
    if words[0] != sys.executable:
        return False
    words = [word for word in words[1:] if word != "-P"]
    rest = words[2:] if words[:2] == ["-m", "edgechat"] else words[1:] if words[:1] == [_SCRIPTED] else None
    return rest is not None and (rest[:1] != [ROLE_FLAG] or rest[1:2] in [[role] for role in _ROLES])


def _of_the_interpreter(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name.startswith(_INTERPRETER) and name != "PYTHONDONTWRITEBYTECODE"
    }


def _umask() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o22


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        if not (part := connection.recv(size - len(data))):
            return None
        data += part
    return data


# In the zygote.


def main() -> None:
    """Do the imports, then serve the socket whose descriptor is the first argument."""
    sys.path.insert(0, str(_ROOT))
    from tests import zygote  # under its own name, not as __main__

    zygote.prepare_and_serve(socket.socket(fileno=int(sys.argv[1])))


def prepare_and_serve(connection: socket.socket) -> NoReturn:
    """Import what children need, and clone a process for each request until the socket is closed."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads do not survive a fork
    for name in _MODULES:
        importlib.import_module(name)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "a process with threads must not fork"
    gc.collect()
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):  # no child was needed
        connection.sendall(b"!")
    _serve(connection)


def _serve(connection: socket.socket) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for whatever runs in the terminal's foreground
    area, thread = _CommandLine(), _thread_id()
    while True:
        try:
            size, streams, *_ = socket.recv_fds(connection, 4, 4)
        except ConnectionResetError:
            size = b""
        if not size:
            os._exit(0)
        request = json.loads(_read(connection, int.from_bytes(size, "big")) or b"")
        process = _clone_sibling()
        if process == 0:
            if thread is not None:
                thread.value = os.getpid()  # as the C library's fork() would do
            connection.close()
            _become(request, streams, area)
        for stream in streams:
            os.close(stream)
        connection.sendall(process.to_bytes(4, "big"))


def _clone_sibling() -> int:
    python, call = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True).syscall  # PyDLL keeps the GIL
    call.restype = ctypes.c_long
    nothing = [ctypes.c_void_p(0)] * 4
    python.PyOS_BeforeFork()
    process = int(call(ctypes.c_long(_CLONE), ctypes.c_ulong(_CLONE_PARENT | signal.SIGCHLD), *nothing))
    if process == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
        if process < 0:
            raise OSError(ctypes.get_errno(), "clone")
    return process


def _thread_id() -> ctypes.c_int | None:
    """Return where the C library stores the main thread's id, which a bare clone does not update."""
    this = ctypes.CDLL(None).pthread_self
    this.restype = ctypes.c_void_p
    numbers = (ctypes.c_int * 256).from_address(this())
    found = [at for at, number in enumerate(numbers) if number == os.getpid()]
    return ctypes.c_int.from_address(this() + 4 * found[0]) if len(found) == 1 else None


class _CommandLine:
    """The command line that /proc shows: an area in this process's memory."""

    def __init__(self) -> None:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        self._start, end = int(fields[45]), int(fields[46])
        self._size = end - self._start

    def show(self, words: list[str]) -> None:
        """Replace it. If the last byte is not zero, the kernel ends the command line at the first zero."""
        text = " ".join(words).encode("utf-8", "surrogateescape")[: self._size - 2]
        filled = text + b"\0" * (self._size - 1 - len(text)) + b"\1"
        ctypes.memmove(self._start, filled, self._size)


def _become(request: Mapping[str, Any], streams: list[int], area: _CommandLine) -> NoReturn:
    """Become the requested process, as if by exec; never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in (signal.SIGTERM, signal.SIGHUP):  # a command's own zygote ignores these
        signal.signal(ignored, signal.SIG_DFL)
    *standard, exec_pipe = streams
    for number, stream in enumerate(standard):
        os.dup2(stream, number)
        os.close(stream)
    if request["session"]:
        os.setsid()
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    words = request["words"]
    area.show(words)
    os.close(exec_pipe)  # Popen waits for this
    _open_streams()
    words = [word for word in words[1:] if word != "-P"]
    scripted = words[0] == _SCRIPTED
    sys.argv = [words[0], *words[1 if scripted else 2 :]]
    _run(lambda: _program(scripted))


def _program(scripted: bool) -> None:
    from edgechat import __main__ as program
    from edgechat.base.process import spawn
    from tests.scripted import PROGRAM

    if scripted:  # as in tests/scripted/edgechat.py
        spawn.PROGRAM = PROGRAM
        program.ROLES["engine"] = "tests.scripted.worker"
    if sys.argv[1:2] != [ROLE_FLAG]:
        _own_zygote()
    program.main()


def _own_zygote() -> None:
    mine, its = socket.socketpair()
    if os.fork() == 0:
        mine.close()
        _CommandLine().show(["zygote"])
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _serve(its)
    its.close()
    _hook(Zygote(mine))


def _open_streams() -> None:
    """Set up sys.stdin, stdout and stderr as Python does at startup."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = None
        with contextlib.suppress(OSError):
            raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
            buffered: Any = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
            stream = io.TextIOWrapper(
                buffered,
                getattr(sys, f"__{name}__").encoding,
                "backslashreplace" if number == 2 else getattr(sys, f"__{name}__").errors,
                line_buffering=number == 2 or raw.isatty(),
                write_through=number > 0 and bool(os.environ.get("PYTHONUNBUFFERED")),
            )
            stream.mode = "r" if number == 0 else "w"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(work: Callable[[], object]) -> NoReturn:
    """Run a program, then end the process as Python does, but without freeing its memory."""
    code: object = 0
    try:
        work()
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        code = -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            code = 120
    assert isinstance(code, int)
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
