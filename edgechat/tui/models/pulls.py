"""Pulls in the background: one at a time, seen from every screen, ended cleanly when the app ends.

Everything here runs on the app's loop but what the library does, which has a thread of its own for each pull.
What has come of a pull that ends early stays on the disk, and the next one of the same model goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgechat.base.errors import DoesNotFit, EdgechatError, EngineError
from edgechat.base.text import mebibytes, one_line
from edgechat.models.hub.download import DownloadStopped
from edgechat.models.hub.progress import DownloadPace, ProgressSample
from edgechat.tui.models.pull import Pull, PullState

if TYPE_CHECKING:
    from edgechat.models.choices import RemoteFile
    from edgechat.planner.ranking.pulling import LocalModelEntry
    from edgechat.tui.models.library import ModelLibrary

OFTEN = 0.2
"""Seconds between two pictures of a download."""
LEAVING = 2.0
"""Seconds that the end of the app waits for a download to close its file."""


class Pulls:
    """The pulls of this app. `on_done` hears of each that is here."""

    def __init__(self, library: ModelLibrary) -> None:
        self.all: list[Pull] = []
        """In the order in which they were begun."""
        self.on_done: Callable[[Pull], None] = lambda _pull: None
        self._library = library
        self._heard: list[Callable[[Pull], None]] = []
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def listen(self, heard: Callable[[Pull], None]) -> Callable[[], None]:
        """Tell `heard` of every change, on the app's loop; return what ends that."""
        self._heard.append(heard)
        return lambda: self._heard.remove(heard) if heard in self._heard else None

    @property
    def current(self) -> Pull | None:
        """The one that goes on now."""
        return next((one for one in self.all if not one.is_over and one.state is not PullState.WAITING), None)

    def find(self, name: str) -> Pull | None:
        """Return the last pull of a model, whatever became of it."""
        return next((one for one in reversed(self.all) if one.name == name), None)

    def line(self) -> str:
        """Return one line about all of them: 'mistral-7b 45% 2.1 GiB of 4.4 GiB, 1:45 left'; '' for none."""
        now = self.current
        if now is None:
            return ""
        waiting = sum(one.state is PullState.WAITING for one in self.all)
        return f"{one_line(now.name, 40)} {now.line}" + (f", {waiting} more" if waiting else "")

    def start(self, name: str, quant: str | None = None, *, anyway: bool = False) -> Pull:
        """Begin a pull, or let it wait for its turn; one of the same model that goes on is returned.

        anyway: also where it does not fit; else it fails with DoesNotFit.
        """
        before = self.find(name)
        if before is not None and not before.is_over and quant in (None, before.quant):
            return before
        if before is not None and before.is_over and before.quant == quant:
            self.all.remove(before)
        pull = Pull(name, quant, anyway=anyway)
        self.all.append(pull)
        self._tell(pull)
        self._next()
        return pull

    def stop(self, pull: Pull) -> None:
        """End a pull; what has come of it is kept."""
        if pull.is_over:
            return
        pull.stop.set()
        # Whoever only asks writes nothing: its answer is not waited for.
        at_once = pull.state in (PullState.WAITING, PullState.ASKING)
        self._set(pull, PullState.STOPPED if at_once else PullState.STOPPING)
        if at_once:
            self._next()

    def retry(self, pull: Pull, *, anyway: bool = False) -> Pull:
        """Begin one again that was stopped or failed, where it was."""
        return self.start(pull.name, pull.quant, anyway=anyway or pull.anyway)

    def forget(self, pull: Pull) -> None:
        """Leave one out that is over."""
        if pull.is_over and pull in self.all:
            self.all.remove(pull)
            self._tell(pull)

    async def close(self) -> None:
        """End them all, and let the one that goes on put its bytes on the disk."""
        self._closed = True
        for pull in list(self.all):
            self.stop(pull)
        end = time.monotonic() + LEAVING
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def _next(self) -> None:
        waiting = next((one for one in self.all if one.state is PullState.WAITING), None)
        if waiting is None or self.current is not None or self._closed:
            return
        self._loop = asyncio.get_running_loop()
        self._set(waiting, PullState.ASKING)
        # No thread of an executor, which the end of the program would wait for.
        self._thread = threading.Thread(target=self._run, args=(waiting,), name="pull", daemon=True)
        self._thread.start()

    def _set(self, pull: Pull, state: PullState, doing: str = "") -> None:
        pull.state, pull.doing = state, doing
        self._tell(pull)

    def _tell(self, pull: Pull) -> None:
        for heard in list(self._heard):
            heard(pull)

    # In the pull's thread.

    def _run(self, pull: Pull) -> None:
        model: str | None = None
        error: EdgechatError | None = None
        try:
            model = self._brought(pull)
        except DownloadStopped:
            pass
        except EdgechatError as failure:
            error = failure
        except Exception as failure:  # a fault of ours ends this pull, not the app
            error = EngineError(f"The download failed: {type(failure).__name__}: {one_line(str(failure))}.")
        self._later(lambda: self._ended(pull, model, error))

    def _brought(self, pull: Pull) -> str:
        from edgechat.planner.ranking.pulling import LocalModelEntry

        told = lambda doing: self._later(lambda: self._doing(pull, doing))  # noqa: E731
        decided = self._library.decide(pull.name, pull.quant, told)
        if pull.stop.is_set():
            raise DownloadStopped
        if isinstance(decided, LocalModelEntry):
            return _name_of(decided)
        if not decided.fits and not pull.anyway:
            picked = decided.picked
            instead = picked.instead if picked is not None else None
            why = picked.why_not if picked is not None else "It does not fit."
            raise DoesNotFit(why, hint=f"{instead} would fit." if instead else None)
        self._later(lambda: self._set(pull, PullState.DOWNLOADING) if not pull.stop.is_set() else None)
        seen = _PullObserver(self, pull, decided.total)
        try:
            self._library.download(decided, seen, pull.stop)
        finally:
            seen.shows()
        return decided.parts[0].name

    def _later(self, work: Callable[[], object]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the app has ended meanwhile
            self._loop.call_soon_threadsafe(work)

    # On the loop again.

    def _doing(self, pull: Pull, doing: str) -> None:
        if not pull.is_over and pull.state is not PullState.STOPPING:
            self._set(pull, pull.state, doing)

    def _shown(self, pull: Pull, standing: ProgressSample) -> None:
        pull.standing = standing
        self._doing(pull, "")

    def _ended(self, pull: Pull, model: str | None, error: EdgechatError | None) -> None:
        if pull.is_over:  # stopped while it asked
            return
        pull.model, pull.error = model, error
        self._set(pull, PullState.DONE if model else PullState.FAILED if error else PullState.STOPPED)
        if model:
            self.on_done(pull)
        self._next()


class _PullObserver:
    """What a download tells, as pictures of it: a DownloadObserver."""

    def __init__(self, pulls: Pulls, pull: Pull, total: int) -> None:
        self._pulls, self._pull = pulls, pull
        self._pace = DownloadPace(total)
        self._shown = 0.0

    def has(self, file: RemoteFile, n: int) -> None:
        self._pace.has(file, n)
        if self._is_time():
            self.shows()

    def shows(self) -> None:
        standing = self._pace.standing()
        self._pulls._later(lambda: self._pulls._shown(self._pull, standing))

    def checked(self, file: RemoteFile, n: int) -> None:
        if self._is_time():
            self.says(f"checking the partial download: {mebibytes(n)}")

    def says(self, text: str) -> None:
        self._pulls._later(lambda: self._pulls._doing(self._pull, one_line(text)))

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._shown < OFTEN:
            return False
        self._shown = now
        return True


def _name_of(here: LocalModelEntry) -> str:
    return f"{here.want.name}:{here.quant}" if here.quant else here.want.name
