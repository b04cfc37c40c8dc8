"""The command as a program, for what several tests see of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

EDGECHAT = [sys.executable, "-m", "edgechat"]
Run = subprocess.CompletedProcess[str]


def edgechat(*words: str | Path, piped: str | None = None) -> Run:
    options: dict[str, Any] = {"input": piped} if piped is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [*EDGECHAT, *map(str, words)], capture_output=True, text=True, timeout=60, check=False, **options
    )


def complaint(run: Run, code: int = 1) -> str:
    """Return the message of a run that must have ended with one, and with no traceback."""
    assert run.returncode == code, run
    assert run.stdout == ""
    assert run.stderr.startswith("error: "), run.stderr
    assert "Traceback" not in run.stderr
    assert len(run.stderr.splitlines()) == 2, run.stderr  # what happened, and what to do next
    return run.stderr
