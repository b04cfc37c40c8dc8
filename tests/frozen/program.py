"""The frozen program as users have it, in an empty environment.

    program = Program(folder / "edgechat", home)
    program("run", "guide", "Hi").stdout
    program.start("run", "guide", "Hi")          its Popen
    program.family()                             every process that was started from the folder

Its home includes a folder for temporary files and an empty one for PATH.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

Run = subprocess.CompletedProcess[str]
T = TypeVar("T")
X86 = platform.machine().lower() in ("x86_64", "amd64")

_WINDOWS_NEEDS = ("SYSTEMROOT", "SYSTEMDRIVE")
_END = 10.0
"""Seconds for what takes well under two, even on a busy machine; what remains after that never ends."""


@dataclass(frozen=True)
class Program:
    """The program and its home; nothing from the tests' own environment reaches it."""

    path: Path
    home: Path

    @property
    def folder(self) -> Path:
        """The unpacked folder."""
        return self.path.parent

    @property
    def scratch(self) -> Path:
        """The folder for temporary files, in which none should remain."""
        return self.home / "temporary"

    def environment(self, **more: str) -> dict[str, str]:
        """Return its complete environment: no Python on PATH, no language, its own home."""
        self.scratch.mkdir(parents=True, exist_ok=True)
        nothing = self.home / "nothing"
        nothing.mkdir(exist_ok=True)
        found = {"PATH": str(nothing), "HOME": str(self.home), "TMPDIR": str(self.scratch)}
        if sys.platform == "win32":
            found |= {name: os.environ[name] for name in _WINDOWS_NEEDS if name in os.environ}
            # Windows tells programs the user's folders whatever the variables say.
            found |= {"USERPROFILE": str(self.home), "EDGECHAT_HOME": str(self.home / "edgechat")}
            found |= {"TEMP": str(self.scratch), "TMP": str(self.scratch)}
        return found | more

    def __call__(self, *words: str | Path, piped: str | None = None, seconds: float = 60, **more: str) -> Run:
        """Run it and wait for it to end; `more` are environment variables."""
        options: dict[str, Any] = {"input": piped} if piped is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [self.path, *words],
            env=self.environment(**more),
            cwd=self.home,
            capture_output=True,
            encoding="utf-8",
            timeout=seconds,
            check=False,
            **options,
        )

    def said(self, *words: str | Path, **options: Any) -> str:
        """Return its output; it must succeed."""
        run = self(*words, **options)
        assert run.returncode == 0, run
        assert "Traceback" not in run.stderr, run.stderr
        return run.stdout

    def found(self, *words: str | Path, **options: Any) -> Any:
        """Return its JSON output; --json is added."""
        return json.loads(self.said(*words, "--json", **options))

    def complaint(self, *words: str | Path, code: int = 1, **options: Any) -> str:
        """Return its error message; it must fail, with advice that makes sense without Python."""
        run = self(*words, **options)
        assert run.returncode == code, run
        assert "error: " in run.stderr.lower(), run.stderr
        for no_help in ("Traceback", "pip ", "python"):
            assert no_help not in run.stderr, run.stderr
        return run.stderr

    def start(
        self, *words: str | Path, stdin: int = subprocess.DEVNULL, **more: str
    ) -> subprocess.Popen[bytes]:
        """Start it with pipes and leave it running."""
        return subprocess.Popen(
            [self.path, *words],
            env=self.environment(**more),
            cwd=self.home,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def launcher(self, folder: Path, **more: str) -> Path:
        """Write a script that starts it in a terminal with that environment only; return its path."""
        variables = shlex.join(f"{name}={value}" for name, value in self.environment(**more).items())
        script = folder / "launch"
        script.write_text(f'exec env -i TERM="$TERM" {variables} {shlex.quote(str(self.path))} "$@"\n')
        return script

    def family(self, mark: str = "") -> list[psutil.Process]:
        """Return the processes running from the folder whose command line contains `mark`."""
        found = []
        for one in psutil.process_iter():
            try:
                words = one.cmdline()
            except psutil.Error:
                continue
            if any(str(self.path) in word for word in words[:3]) and mark in " ".join(words):
                found.append(one)
        return found

    def child(self, role: str, seconds: float = 20) -> psutil.Process:
        """Wait for a child process in this role; return it."""
        return until(lambda: self.family(f"--child {role}"), seconds)[0]

    def is_gone(self) -> None:
        """Assert that all its processes end soon; zombies do not count."""
        until(lambda: not self.family(), _END)

    def turns(self) -> list[tuple[str, str, str]]:
        """Return the role, text and state of every stored turn, in order."""
        (store,) = self.home.rglob("chats.db")
        with sqlite3.connect(store) as db:
            return db.execute("SELECT role, content, state FROM turns ORDER BY rowid").fetchall()

    def answer(self) -> str:
        """Return the stored part of the last answer; '' if none has started."""
        try:
            role, content, _ = self.turns()[-1]
        except (ValueError, IndexError, sqlite3.OperationalError):  # the store may not be complete yet
            return ""
        return content if role == "assistant" else ""

    def begun(self, n: int = 100) -> str:
        """Wait until `n` characters of an answer are stored; return them."""
        return until(lambda: len(self.answer()) >= n and self.answer(), 60)


def until(look: Callable[[], T], seconds: float = 20) -> T:
    """Return what `look` finds as soon as it finds something. Raises AssertionError on timeout."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain")


def inside(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and modification time of everything in a folder, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        found[str(path.relative_to(folder))] = (state.st_size, state.st_mtime_ns)
    return found


def names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the models listed by `edgechat list --json`."""
    return [row["name"] for row in rows]
