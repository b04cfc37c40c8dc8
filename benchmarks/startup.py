"""How long until something is there: the version, the first word of an answer, the app's first frame.

    python -m benchmarks.startup [--rounds 15] [--program dist/edgechat-VERSION-OS-ARCH/edgechat]

With --program the packaged program is measured beside the installed one, in turns. The first word is the
guide's, from the start of the process to the first byte of its answer: three processes of edgechat. The first
frame is timed to the first bytes that draw its text, in a pseudo-terminal of 100 x 30 that answers nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

INSTALLED = Path(sys.executable).with_name("edgechat")


def version(program: Path) -> float:
    """Return the seconds of `edgechat --version`."""
    began = time.perf_counter()
    subprocess.run([program, "--version"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_word(program: Path) -> float:
    """Return the seconds until the guide begins to answer."""
    began = time.perf_counter()
    command = [program, "run", "guide", "What is edgechat?", "--no-store"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process:
        if not process.stdout.read(1):
            raise SystemExit(f"{program} says nothing.")
        return time.perf_counter() - began


def first_frame(program: Path, sign: bytes, size: tuple[int, int] = (30, 100)) -> float:
    """Return the seconds until the app has drawn `sign`."""
    import fcntl
    import pty
    import struct
    import termios

    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(program, [str(program)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    seen = b""
    try:
        while sign not in seen:
            seen += os.read(terminal, 65536)
        return time.perf_counter() - began
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sign", default="stays on this machine", help="text of the first frame")
    parser.add_argument("--program", type=Path, help="a packaged program to compare with")
    options = parser.parse_args()
    programs = [INSTALLED, *([options.program.resolve()] if options.program else [])]
    sign = options.sign.encode()
    measures: dict[str, Callable[[Path], float]] = {
        "edgechat --version": version,
        "first word": first_word,
        "first frame": lambda program: first_frame(program, sign),
    }
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGECHAT_HOME"] = home
        for name, measure in measures.items():
            rounds = [[measure(program) for program in programs] for _ in range(options.rounds)]
            for program, seconds in zip(programs, zip(*rounds, strict=True), strict=True):
                kind = "" if program is INSTALLED else ", packaged"
                print(
                    f"{name}{kind}: median {1000 * statistics.median(seconds):.0f} ms, "
                    f"best {1000 * min(seconds):.0f}, worst {1000 * max(seconds):.0f} ms of {options.rounds}"
                )
            if len(programs) > 1:
                ratios = [packaged / installed for installed, packaged in rounds]
                print(f"{name}: packaged / installed {statistics.median(ratios):.2f} (median of rounds)")


if __name__ == "__main__":
    main()
