"""Background model downloads ("pulls"): one at a time, visible on every screen, stopped when the app ends.

Everything runs on the app's event loop, except for the library's functions, which run in one thread per pull.
If a pull ends early, its partial file is kept, and the next pull of the same model resumes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from edgechat.base.errors import DoesNotFit, EdgechatError, EngineError
from edgechat.base.text import mebibytes, one_line
from edgechat.models.hub.download import DownloadPace, DownloadStopped, ProgressSample, duration

if TYPE_CHECKING:
    from edgechat.models.choices import RemoteFile
    from edgechat.tui.models.library import ModelLibrary


class PullState(Enum):
    """States of a pull; the values are shown to users."""

    WAITING = "waiting for the previous download"
    ASKING = "asking the hub"
    DOWNLOADING = "downloading"
    STOPPING = "stopping"
    DONE = "here"
    STOPPED = "stopped"
    FAILED = "failed"


class Pull:
    """The download of a model. It is read on the app's event loop, and changed only by Pulls."""

    def __init__(self, name: str, quant: str | None = None, *, anyway: bool = False) -> None:
        self.name = name
        """The name requested: a catalogue name, or owner/repo."""
        self.quant = quant
        self.anyway = anyway
        """Whether to download it even if it does not fit."""
        self.state = PullState.WAITING
        self.activity = ""
        """The current activity, if more specific than the state."""
        self.progress: ProgressSample | None = None
        self.error: EdgechatError | None = None
        self.model: str | None = None
        """The model's name in chats, once it is downloaded."""
        self.stop = threading.Event()

    @property
    def is_over(self) -> bool:
        return self.state in (PullState.DONE, PullState.STOPPED, PullState.FAILED)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the download completes; None if unknown."""
        return self.progress.left if self.progress is not None else None

    @property
    def line(self) -> str:
        """State and progress, such as '45% 2.1 GiB of 4.4 GiB, 1:45 left'."""
        if self.state is PullState.DOWNLOADING and self.progress is not None and not self.activity:
            left = self.progress.left
            return self.progress.size + (f", {duration(left)} left" if left is not None else "")
        if self.state is PullState.FAILED and self.error is not None:
            return f"failed: {self.error.message}"
        if self.state is PullState.STOPPED and self.progress is not None and self.progress.here:
            return f"stopped at {self.progress.size}"
        return self.activity or self.state.value


_REPORT_INTERVAL = 0.2
"""Minimum seconds between progress reports."""
_CLOSE_TIMEOUT = 2.0
"""Seconds to wait at exit for a download to close its file."""


class Pulls:
    """The app's pulls. `on_done` is called with each pull that succeeds."""

    def __init__(self, library: ModelLibrary) -> None:
        self.all: list[Pull] = []
        """All pulls, in the order in which they were started."""
        self.on_done: Callable[[Pull], None] = lambda _pull: None
        self.rate: float | None = None
        """Bytes per second in the last download; None before the first."""
        self._library = library
        self._listeners: list[Callable[[Pull], None]] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def listen(self, listener: Callable[[Pull], None]) -> None:
        """Call `listener` on the app's event loop after every change, until `unlisten` is called."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Pull], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    @property
    def current(self) -> Pull | None:
        running = (pull for pull in self.all if not pull.is_over and pull.state is not PullState.WAITING)
        return next(running, None)

    def line(self) -> str:
        """Return a line such as 'mistral-7b 45% 2.1 GiB of 4.4 GiB, 1:45 left, 2 more', or '' if idle."""
        current = self.current
        if current is None:
            return ""
        waiting = sum(pull.state is PullState.WAITING for pull in self.all)
        return f"{one_line(current.name, 40)} {current.line}" + (f", {waiting} more" if waiting else "")

    def start(self, name: str, quant: str | None = None, *, anyway: bool = False) -> Pull:
        """Start or queue a pull, or return the one in progress for the same model.

        anyway: whether to download the model even if it does not fit, instead of failing with DoesNotFit.
        """
        last = next((pull for pull in reversed(self.all) if pull.name == name), None)
        if last is not None and not last.is_over and quant in (None, last.quant):
            return last
        if last is not None and last.is_over and last.quant == quant:
            self.all.remove(last)
        pull = Pull(name, quant, anyway=anyway)
        self.all.append(pull)
        self._notify(pull)
        self._start_next()
        return pull

    def stop(self, pull: Pull) -> None:
        """Stop a pull, keeping its partial file."""
        if pull.is_over:
            return
        pull.stop.set()
        # Nothing has been written before the download begins, so there is no need to wait for the thread.
        at_once = pull.state in (PullState.WAITING, PullState.ASKING)
        self._set(pull, PullState.STOPPED if at_once else PullState.STOPPING)
        if at_once:
            self._start_next()

    def retry(self, pull: Pull, *, anyway: bool = False) -> Pull:
        """Resume a stopped or failed pull."""
        return self.start(pull.name, pull.quant, anyway=anyway or pull.anyway)

    def forget(self, pull: Pull) -> None:
        """Remove a finished pull from the list."""
        if pull.is_over and pull in self.all:
            self.all.remove(pull)
            self._notify(pull)

    async def close(self) -> None:
        """Stop all pulls, and let the one in progress write the data it has received."""
        self._closed = True
        for pull in list(self.all):
            self.stop(pull)
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def _start_next(self) -> None:
        waiting = next((pull for pull in self.all if pull.state is PullState.WAITING), None)
        if waiting is None or self.current is not None or self._closed:
            return
        self._loop = asyncio.get_running_loop()
        self._set(waiting, PullState.ASKING)
        # Not an executor, since the program would wait for its threads at exit.
        self._thread = threading.Thread(target=self._run, args=(waiting,), name="pull", daemon=True)
        self._thread.start()

    def _set(self, pull: Pull, state: PullState, activity: str = "") -> None:
        pull.state, pull.activity = state, activity
        self._notify(pull)

    def _notify(self, pull: Pull) -> None:
        for listener in list(self._listeners):
            listener(pull)

    # In the pull's thread.

    def _run(self, pull: Pull) -> None:
        model: str | None = None
        error: EdgechatError | None = None
        try:
            model = self._download(pull)
        except DownloadStopped:
            pass
        except EdgechatError as failure:
            error = failure
        except Exception as failure:  # a bug should end the pull, not the app
            error = EngineError(f"The download failed: {type(failure).__name__}: {one_line(str(failure))}.")
        self._call_on_loop(lambda: self._finish(pull, model, error))

    def _download(self, pull: Pull) -> str:
        """Download a model and return the name to chat with."""
        from edgechat.planner.ranking.pulling import LocalModelEntry

        def show(activity: str) -> None:
            self._call_on_loop(lambda: self._show_activity(pull, activity))

        decision = self._library.decide(pull.name, pull.quant, show)
        if pull.stop.is_set():
            raise DownloadStopped
        if isinstance(decision, LocalModelEntry):
            name = decision.want.name
            return f"{name}:{decision.quant}" if decision.quant else name
        if not decision.fits and not pull.anyway:
            picked = decision.picked
            instead = picked.instead if picked is not None else None
            why = picked.why_not if picked is not None else "It does not fit."
            raise DoesNotFit(why, hint=f"{instead} would fit." if instead else None)
        self._call_on_loop(lambda: self._set(pull, PullState.DOWNLOADING) if not pull.stop.is_set() else None)
        observer = _PullObserver(self, pull, decision.total)
        try:
            self._library.download(decision, observer, pull.stop)
        finally:
            observer.report()
        return decision.parts[0].name

    def _call_on_loop(self, function: Callable[[], object]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the app has ended
            self._loop.call_soon_threadsafe(function)

    # Back on the event loop.

    def _show_activity(self, pull: Pull, activity: str) -> None:
        if not pull.is_over and pull.state is not PullState.STOPPING:
            self._set(pull, pull.state, activity)

    def _finish(self, pull: Pull, model: str | None, error: EdgechatError | None) -> None:
        if pull.is_over:  # stopped before the download began
            return
        pull.model, pull.error = model, error
        self._set(pull, PullState.DONE if model else PullState.FAILED if error else PullState.STOPPED)
        if model:
            self.on_done(pull)
        self._start_next()

    def _show_progress(self, pull: Pull, progress: ProgressSample) -> None:
        pull.progress = progress
        self.rate = progress.rate or self.rate
        self._show_activity(pull, "")


class _PullObserver:
    """A DownloadObserver that reports progress to Pulls, at most once per interval."""

    def __init__(self, pulls: Pulls, pull: Pull, total: int) -> None:
        self._pulls, self._pull = pulls, pull
        self._pace = DownloadPace(total)
        self._last_report = 0.0

    def has(self, file: RemoteFile, n: int) -> None:
        self._pace.has(file, n)
        if self._is_due():
            self.report()

    def report(self) -> None:
        progress = self._pace.standing()
        self._pulls._call_on_loop(lambda: self._pulls._show_progress(self._pull, progress))

    def checked(self, file: RemoteFile, n: int) -> None:
        if self._is_due():
            self.says(f"checking the partial download: {mebibytes(n)}")

    def says(self, text: str) -> None:
        self._pulls._call_on_loop(lambda: self._pulls._show_activity(self._pull, one_line(text)))

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._last_report < _REPORT_INTERVAL:
            return False
        self._last_report = now
        return True
