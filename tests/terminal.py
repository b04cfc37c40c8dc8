"""A real terminal for tests: tmux runs the program, keys go in, the screen comes out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType

available = shutil.which("tmux") is not None


class Terminal:
    """A tmux session with one program in a shell, gone on exit.

    with Terminal(["edgechat"]) as terminal:
        terminal.wait_for("guide")
        terminal.keys("Hello", "Enter")
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 100,
        rows: int = 30,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._socket = f"edgechat-{uuid.uuid4().hex[:8]}"
        words = " ".join(map(shlex.quote, command))
        size = ["-x", str(columns), "-y", str(rows)]
        env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(environment or {})}
        # The shell stays when the program ends, so that the terminal it leaves can be looked at.
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "env PS1='$ ' sh", env=env)
        self._tmux("set", "-g", "remain-on-exit", "on")
        self.wait_for("$")
        self.keys(f"clear; {words}", "Enter")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._tmux("kill-server", check=False)

    def keys(self, *keys: str) -> None:
        """Type: each argument is text, or the name of a key as tmux has it (Enter, Escape, C-c)."""
        for key in keys:
            self._tmux("send-keys", key)

    def screen(self) -> str:
        """Return what the terminal shows, without colours."""
        return self._tmux("capture-pane", "-p")

    def wait_for(self, *texts: str, timeout: float = 20.0) -> str:
        """Return the screen once it shows all `texts`; AssertionError with the screen if it never does."""
        deadline = time.monotonic() + timeout
        while True:
            screen = self.screen()
            if all(text in screen for text in texts):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(f"the terminal never showed {texts}:\n{screen}")
            time.sleep(0.05)

    def shell(self, command: str, *texts: str) -> str:
        """Run a command in the shell that the program has left."""
        self.keys(command, "Enter")
        return self.wait_for(*texts)

    def pid(self) -> int:
        """Return the process id of the shell; the program is its child."""
        return int(self._tmux("display-message", "-p", "#{pane_pid}"))

    def _tmux(self, *words: str, env: Mapping[str, str] | None = None, check: bool = True) -> str:
        return subprocess.run(
            ["tmux", "-L", self._socket, *words], capture_output=True, text=True, check=check, env=env
        ).stdout
