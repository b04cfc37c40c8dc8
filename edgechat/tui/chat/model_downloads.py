"""Models that are downloaded while the user chats, and the names that `/model` and `/pull` complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from edgechat.base.text import mebibytes, one_line
from edgechat.tui.chat.views import ChatView
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pull import Pull, PullState
from edgechat.tui.models.pulls import Pulls


class ModelDownloads:
    """Shows the progress of downloads, and how they ended."""

    def __init__(self, view: ChatView, library: ModelLibrary, on_awaited: Callable[[str], bool]) -> None:
        """on_awaited: switches to a model that the user waits for; returns whether it could."""
        self.library = library
        self.pulls = Pulls(library)
        self.pulls.listen(self._changed)
        self.pulls.on_done = self._done
        self.awaited: Pull | None = None
        """The download whose model answers as soon as it is complete."""
        self._view = view
        self._on_awaited = on_awaited
        self._names: dict[bool, list[tuple[str, str]]] = {}

    def names(self, *, remote: bool) -> Sequence[tuple[str, str]]:
        """Return the local models, or those of the catalogue, each with a few words; empty at first."""
        if remote not in self._names:
            self._names[remote] = []
            self._view.run_in_background(self._find_names(remote), ignore_errors=True)
        return self._names[remote]

    async def _find_names(self, remote: bool) -> None:
        from edgechat.models.catalogue import catalogue
        from edgechat.models.local.inventory import inventory

        if remote:
            entries = await asyncio.to_thread(catalogue)
            self._names[True] = [
                (entry.name, entry.description) for entry in entries if entry.repo is not None
            ]
        else:
            models = (await asyncio.to_thread(inventory)).models
            self._names[False] = [
                (model.name, f"{mebibytes(model.size)}, {model.place.value}") for model in models
            ]

    def _changed(self, pull: Pull) -> None:
        self._view.show_downloads(self.pulls.line())
        # The models screen shows errors itself.
        if pull.state is PullState.FAILED and pull.error is not None and self._view.is_current:
            self._view.show_error(pull.error)

    def _done(self, pull: Pull) -> None:
        self._names.clear()
        if pull.model is None or (pull is self.awaited and self._on_awaited(pull.model)):
            return
        name = one_line(pull.model, 60)
        self._view.show_message(f"{name} was downloaded. To chat with it: /model {name}", seconds=15)
