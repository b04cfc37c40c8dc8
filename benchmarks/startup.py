"""How long until something is there: `edgechat --version`, and the app's first frame.

    python -m benchmarks.startup [--rounds 15]

The first frame is timed from the start of the process to the first bytes that draw its text,
in a pseudo-terminal of 100 x 30 that answers nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EDGECHAT = str(Path(sys.executable).with_name("edgechat"))


def version() -> float:
    """Return the seconds of `edgechat --version`."""
    began = time.perf_counter()
    subprocess.run([EDGECHAT, "--version"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_frame(sign: bytes, size: tuple[int, int] = (30, 100)) -> float:
    """Return the seconds until the app has drawn `sign`."""
    import fcntl
    import pty
    import struct
    import termios

    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(EDGECHAT, [EDGECHAT])
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGECHAT_HOME"] = home
        sign = options.sign.encode()
        for name, measure in (("edgechat --version", version), ("first frame", lambda: first_frame(sign))):
            seconds = sorted(measure() for _ in range(options.rounds))
            print(
                f"{name}: median {1000 * statistics.median(seconds):.0f} ms, "
                f"best {1000 * seconds[0]:.0f}, worst {1000 * seconds[-1]:.0f} ms of {options.rounds}"
            )


if __name__ == "__main__":
    main()
