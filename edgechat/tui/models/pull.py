"""One model that is being downloaded in the background, or was."""

from __future__ import annotations

import threading
from enum import Enum

from edgechat.base.errors import EdgechatError
from edgechat.models.hub.progress import ProgressSample, duration


class PullState(Enum):
    """How far a pull is."""

    WAITING = "waiting for the previous download"
    ASKING = "asking the hub"
    DOWNLOADING = "downloading"
    STOPPING = "stopping"
    DONE = "here"
    STOPPED = "stopped"
    FAILED = "failed"


class Pull:
    """One model on its way here. Read it on the app's loop; change it through Pulls."""

    def __init__(self, name: str, quant: str | None = None, *, anyway: bool = False) -> None:
        self.name = name
        """What was asked for: a name of the catalogue, or owner/repo."""
        self.quant = quant
        self.anyway = anyway
        """Whether it comes although it does not fit."""
        self.state = PullState.WAITING
        self.doing = ""
        """What goes on, in more words than the state has."""
        self.standing: ProgressSample | None = None
        self.error: EdgechatError | None = None
        self.model: str | None = None
        """The name to chat with, once it is here."""
        self.stop = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether nothing of it goes on any more."""
        return self.state in (PullState.DONE, PullState.STOPPED, PullState.FAILED)

    @property
    def line(self) -> str:
        """How it goes: '45% 2.1 GiB of 4.4 GiB, 1:45 left'."""
        if self.state is PullState.DOWNLOADING and self.standing is not None and not self.doing:
            left = self.standing.left
            return self.standing.size + (f", {duration(left)} left" if left is not None else "")
        if self.state is PullState.FAILED and self.error is not None:
            return f"failed: {self.error.message}"
        if self.state is PullState.STOPPED and self.standing is not None and self.standing.here:
            return f"stopped at {self.standing.size}"
        return self.doing or self.state.value
