"""A real terminal for tests: a shell in tmux, with keys as input, and the screen and all bytes as output."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pytest

# Clipboard writes, C1 controls in UTF-8, and bidirectional controls: U+061C, U+200E and on.
_HOSTILE = re.compile(
    rb"\x1b\]52;[^\x07\x1b]*|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def hostile(raw: bytes) -> list[bytes]:
    """Return the sequences in a program's output that untrusted text must never put there."""
    return _HOSTILE.findall(raw)


class Terminal:
    """A shell in a terminal of 100 x 30, with its own folder; removed on exit.

    with Terminal(folder) as terminal:
        terminal.run(["edgechat", "run", "guide"])
        terminal.until(">>>")
    """

    def __init__(self, folder: Path, *, home: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.home = home or folder / "home"
        self._raw_path = folder / "raw"
        self._socket = str(folder / "tmux")
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "env PS1='$ ' sh")
        self._tmux("set-option", "-g", "default-terminal", "xterm-256color")
        self._tmux("pipe-pane", f"cat >> {self._raw_path}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._tmux("kill-server")

    def run(self, words: Sequence[str], *, variables: str = "") -> None:
        """Type a command line, followed by one that prints its exit code."""
        self.ask(f"{variables} {shlex.join(words)}; echo left with $?")

    def type(self, text: str) -> None:
        """Type text without pressing Enter."""
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys, using tmux's names: Enter, Escape, C-c."""
        self._tmux("send-keys", *keys)

    def ask(self, text: str) -> None:
        """Type a line and press Enter."""
        self.type(text)
        self.press("Enter")

    def paste(self, text: str) -> None:
        """Paste text, as a bracketed paste if the program requested that."""
        self._tmux("set-buffer", text)
        self._tmux("paste-buffer", "-p")

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        path = self._raw_path.with_name("sent")
        path.write_bytes(data)
        self._tmux("load-buffer", str(path))
        self._tmux("paste-buffer", "-r")

    def resize(self, width: int, height: int) -> None:
        """Resize the terminal."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def hang_up(self) -> None:
        """Close the terminal, as its window's close button would."""
        self._tmux("kill-session")

    @property
    def screen(self) -> str:
        """The text on the screen, without colors."""
        return self._tmux("capture-pane", "-p")

    @property
    def raw(self) -> bytes:
        """Everything written to the terminal."""
        return self._raw_path.read_bytes()

    def ask_tmux(self, form: str) -> str:
        """Return the value of a tmux format: '#{cursor_flag}'."""
        return self._tmux("display-message", "-p", form).strip()

    def until(self, wanted: str | Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait for a text on the screen, or for a condition. Raises AssertionError on timeout."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if wanted in self.screen if isinstance(wanted, str) else wanted():
                return
            time.sleep(0.05)
        raise AssertionError(f"in vain waited for {wanted!r}; the screen shows:\n{self.screen}")

    def processes(self, mark: str = "") -> list[psutil.Process]:
        """Return the shell's descendants whose command line contains `mark`."""
        shell = psutil.Process(int(self.ask_tmux("#{pane_pid}")))
        return [one for one in shell.children(recursive=True) if mark in " ".join(one.cmdline())]

    def _tmux(self, *args: str) -> str:
        # The terminal's own size counts, not the size of pytest's output.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment = inherited | {"EDGECHAT_HOME": str(self.home), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            ["tmux", "-S", self._socket, *args], env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout
