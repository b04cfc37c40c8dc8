"""How long a keypress takes to appear while a 1B model generates on all cores.

    python -m benchmarks.keypress [--keys 60]

Runs the real app in a pseudo-terminal and sends a question. While the answer streams, letters that no answer
contains are typed one by one, and each is timed until it is written to the terminal.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from tests.kit import TINYLLAMA, Spec, build

INSTALLED = Path(sys.executable).with_name("edgechat")
LETTERS = "äöüßéèêñçøåæðþ"


class App:
    """The app in a pseudo-terminal."""

    def __init__(
        self, model: Path | str | None, size: tuple[int, int] = (30, 100), program: Path = INSTALLED
    ) -> None:
        """model: if None, the app uses the last one. size: rows and columns."""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(program, [str(program), *(["--model", str(model)] if model is not None else [])])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self.terminal, text.encode())

    def until(self, text: str, timeout: float) -> float:
        """Read until `text` is written to the terminal; return how long that takes in seconds."""
        began, seen, sign = time.perf_counter(), b"", text.encode()
        while sign not in seen:
            left = began + timeout - time.perf_counter()  # a blinking cursor does not count
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise TimeoutError(f"{text!r} never came")
            seen = seen[-256:] + os.read(self.terminal, 65536)
        return time.perf_counter() - began

    def rest(self, seconds: float) -> int:
        """Read for a while; return the number of bytes read."""
        end, count = time.perf_counter() + seconds, 0
        while (left := end - time.perf_counter()) > 0:
            if select.select([self.terminal], [], [], left)[0]:
                count += len(os.read(self.terminal, 65536))
        return count

    def close(self) -> None:
        """Kill the app."""
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def measure(model: Path, keys: int) -> list[float]:
    """Return how long each keypress takes, in seconds, during one long answer."""
    app = App(model)
    try:
        app.until("(0%)", 60)
        app.rest(5)
        app.type("Tell me everything\r")
        app.rest(5)
        seconds = []
        for number in range(keys):
            letter = LETTERS[number % len(LETTERS)]
            app.type(letter)
            seconds.append(app.until(letter, 10))
            app.type("\x7f")
            if app.rest(0.15 + 0.01 * (number % 7)) == 0:
                raise RuntimeError("the answer has ended: nothing streams")
        return seconds
    finally:
        app.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=60)
    options = parser.parse_args()
    model = build(Spec(shape=TINYLLAMA, weights="Q4_0", n_vocab=32000, mute=(257, 258)))
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGECHAT_HOME"] = home
        seconds = sorted(measure(model, options.keys))
    at = {
        name: 1000 * seconds[int(share * (len(seconds) - 1))] for name, share in (("p95", 0.95), ("max", 1))
    }
    print(
        f"keypress while {model.name} streams on {os.cpu_count()} cores, {len(seconds)} keys: "
        f"median {1000 * statistics.median(seconds):.1f} ms, p95 {at['p95']:.1f} ms, worst {at['max']:.1f} ms"
    )


if __name__ == "__main__":
    main()
