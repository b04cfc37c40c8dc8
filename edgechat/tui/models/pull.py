"""One model that is being downloaded in the background, or was."""

from __future__ import annotations

import threading
from enum import Enum

from edgechat.base.errors import EdgechatError
from edgechat.models.hub.download import ProgressSample, duration


class PullState(Enum):
    """The states of a pull; the values are for users."""

    WAITING = "waiting for the previous download"
    ASKING = "asking the hub"
    DOWNLOADING = "downloading"
    STOPPING = "stopping"
    DONE = "here"
    STOPPED = "stopped"
    FAILED = "failed"


class Pull:
    """The download of one model. Read it on the app's event loop; change it through Pulls."""

    def __init__(self, name: str, quant: str | None = None, *, anyway: bool = False) -> None:
        self.name = name
        """What was requested: a name of the catalogue, or owner/repo."""
        self.quant = quant
        self.anyway = anyway
        """Whether it is downloaded even if it does not fit."""
        self.state = PullState.WAITING
        self.activity = ""
        """What goes on, if that is more than the state says."""
        self.progress: ProgressSample | None = None
        self.error: EdgechatError | None = None
        self.model: str | None = None
        """The name to chat with, once it is downloaded."""
        self.stop = threading.Event()

    @property
    def is_over(self) -> bool:
        return self.state in (PullState.DONE, PullState.STOPPED, PullState.FAILED)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until it is downloaded; None while unknown."""
        return self.progress.left if self.progress is not None else None

    @property
    def line(self) -> str:
        """State and progress: '45% 2.1 GiB of 4.4 GiB, 1:45 left'."""
        if self.state is PullState.DOWNLOADING and self.progress is not None and not self.activity:
            left = self.progress.left
            return self.progress.size + (f", {duration(left)} left" if left is not None else "")
        if self.state is PullState.FAILED and self.error is not None:
            return f"failed: {self.error.message}"
        if self.state is PullState.STOPPED and self.progress is not None and self.progress.here:
            return f"stopped at {self.progress.size}"
        return self.activity or self.state.value
