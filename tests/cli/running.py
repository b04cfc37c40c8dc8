"""Runs the command as a program."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.scripted import COMMAND

EDGECHAT = COMMAND
Run = subprocess.CompletedProcess[str]
TIME_LIMIT = 90


def edgechat(*words: str | Path, piped: str | None = None, **environment: str) -> Run:
    """Run `edgechat` with these arguments in its own process; see tests/zygote.py."""
    given = {"stdin": subprocess.DEVNULL} if piped is None else {"input": piped}
    return subprocess.run(
        [*EDGECHAT, *map(str, words)],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=os.environ | environment,
        timeout=TIME_LIMIT,
        **given,
    )


def complaint(run: Run, code: int = 1) -> str:
    """Return the error message of a run that must have failed without a traceback."""
    assert run.returncode == code, run
    assert run.stdout == ""
    assert run.stderr.startswith("error: "), run.stderr
    assert "Traceback" not in run.stderr
    assert len(run.stderr.splitlines()) == 2, run.stderr  # what happened, and what to do next
    return run.stderr
