"""The progress of a download: a line that is overwritten on a terminal, else a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from edgechat.base.text import flat, mebibytes, one_line
from edgechat.cli.output.status import StatusLine
from edgechat.models.choices import RemoteFile
from edgechat.models.hub.download import DownloadPace

EVERY = 10.0
"""Seconds between two lines without a terminal."""
_TERMINAL_INTERVAL = 0.2


class DownloadProgress:
    """A DownloadObserver that shows the progress of several files together."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()
        self._status = StatusLine(self._stream)
        self._pace = DownloadPace(total)
        self._shown = time.monotonic()

    def has(self, file: RemoteFile, n: int) -> None:
        """Note that the first n bytes of the file are here."""
        if self._pace.has(file, n):
            self._show(lambda: f"{self._pace.standing().line}, {_base(file.name)}")

    def checked(self, file: RemoteFile, n: int) -> None:
        """Note that the first n bytes of a partial download have been hashed again."""
        self._show(lambda: f"checking the partial download of {_base(file.name)}: {mebibytes(n)}")

    def says(self, text: str) -> None:
        """Print a sentence."""
        self._status.clear()
        print(flat(text), file=self._stream, flush=True)

    def clear(self) -> None:
        """Clear the line."""
        self._status.clear()

    def _show(self, text: Callable[[], str]) -> None:
        """Show a line, unless one was shown just now."""
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_INTERVAL if self._on else EVERY):
            return
        self._shown = now
        if self._on:
            self._status.show(text())
        else:
            print(text(), file=self._stream, flush=True)


def _base(name: str) -> str:
    return one_line(name.rpartition("/")[2], 40)
