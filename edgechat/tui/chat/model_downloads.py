"""Models that are downloaded while the user chats, and the names that `/model` and `/pull` complete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from edgechat.base.errors import HubUnreachable, OfflineMode
from edgechat.base.text import figure, mebibytes, one_line, rough_seconds
from edgechat.models.remote.model import KINDS
from edgechat.planner.ranking.seeing import StandIn, local_model, seeing_model
from edgechat.tui.chat.views import ChatView
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import Pull, Pulls, PullState

if TYPE_CHECKING:
    from edgechat.models.remote.listing import RemoteRow


_HOSTED_SECONDS = 0.7
"""How long the first list of models waits for those of other servers."""


class DownloadListener(Protocol):
    """What the downloads call when something happens to a model that the chat could use."""

    @property
    def current_model(self) -> str | None:
        """The name of the model that answers now."""

    def awaited_changed(self, pull: Pull) -> None:
        """The download that the user waits for goes on, or has ended."""

    def model_offered(self) -> None:
        """There is another model to switch to, or none any more."""


class ModelDownloads:
    """Shows the progress of downloads, and how they ended."""

    def __init__(self, view: ChatView, library: ModelLibrary, listener: DownloadListener) -> None:
        self.library = library
        self.pulls = Pulls(library)
        self.pulls.listen(self._changed)
        self.pulls.on_done = self._done
        self.awaited: Pull | None = None
        """The download whose model answers as soon as it is complete; resumed, it is still awaited."""
        self.follower: Pull | None = None
        """The download of a better model, after the one that is awaited."""
        self.offered = ""
        """The model that was downloaded last and could be switched to; empty: none."""
        self.stand_in: StandIn | None = None
        """A model for the images that the present one does not see, or for one that does not answer."""
        self._hosted: list[tuple[str, str]] = []
        """The models of other servers, as they were when these were last asked."""
        self._view = view
        self._listener = listener
        self._names: dict[bool, list[tuple[str, str]]] = {}

    def names(self, *, remote: bool) -> Sequence[tuple[str, str]]:
        """Return the local models, or those of the catalogue, each with a few words; empty at first.

        Local ones come with the one that was used last first.
        """
        if remote not in self._names:
            self._names[remote] = []
            self._view.run_in_background(self.find_names(remote=remote), ignore_errors=True)
            if not remote:
                self._view.run_in_background(self._ask_servers(), ignore_errors=True)
        return self._names[remote]

    async def find_names(self, *, remote: bool) -> Sequence[tuple[str, str]]:
        """Return them once they are found. Raises SettingsError."""
        names = await asyncio.to_thread(self._remote_names if remote else self._local_names)
        self._names[remote] = names
        return names

    def _remote_names(self) -> list[tuple[str, str]]:
        entries = self.library.catalogue()
        return [(entry.name, entry.description) for entry in entries if entry.repo is not None]

    def _local_names(self) -> list[tuple[str, str]]:
        rows = self.library.inventory(self._listener.current_model)
        usable = (row.model for row in rows if not row.glance.damage)
        local = [(model.chat_name, f"{mebibytes(model.size)}, {model.where}") for model in usable]
        return [*local, *self._hosted]

    async def _ask_servers(self) -> None:
        """Ask other servers for their models, so that these can be named. Raises SettingsError."""
        listed = await asyncio.to_thread(self.library.hosted)
        if listed:
            from edgechat.models.remote.listing import rows_of

            self._hosted = [(row.model.name, _about_hosted(row)) for row in rows_of(listed)]
            await self.find_names(remote=False)

    async def switchable(self) -> list[tuple[str, str, bool]]:
        """Return models to switch to, each with a few words, and whether it is on this machine.

        What is offered comes first, then the local ones, then those of the catalogue. Raises SettingsError.
        """
        asking = asyncio.create_task(self._ask_servers())
        self._view.run_in_background(_end_of(asking), ignore_errors=True)
        if not self._hosted:  # else they are shown as they were, and the answer is for the next time
            await asyncio.wait([asking], timeout=_HOSTED_SECONDS)
        local = await self.find_names(remote=False)
        offered = [(self.offered, "just downloaded")] if self.offered else []
        known = {name.partition(":")[0] for name, _ in (*offered, *local)}
        others = [] if await asyncio.to_thread(self.library.offline) else await self.find_names(remote=True)
        return [
            *((name, note, True) for name, note in offered),
            *((name, note, True) for name, note in local if name != self.offered),
            *((name, note, False) for name, note in others if name not in known),
        ]

    async def find_seeing(self) -> None:
        """Offer a model that sees, if one fits. Raises EdgechatError."""
        library, current = self.library, self._listener.current_model
        seeing = await asyncio.to_thread(seeing_model, lambda: library.inventory(current), library.overview)
        offline = await asyncio.to_thread(library.offline)
        self.stand_in = None if seeing is None or (offline and not seeing.is_here) else seeing
        self._listener.model_offered()

    async def find_local(self) -> None:
        """Offer a model of this machine that fits. Raises EdgechatError."""
        self.stand_in = local_model(await asyncio.to_thread(self.library.inventory, None))
        self._listener.model_offered()

    def _changed(self, pull: Pull) -> None:
        self._view.show_downloads(self.pulls.line())
        if self.awaited is not None and pull.name == self.awaited.name:
            self.awaited = pull if pull in self.pulls.all else None  # removed from the list of downloads
            if self.awaited is not None:
                self._listener.awaited_changed(pull)
        # The models screen shows errors itself.
        elif pull.state is PullState.FAILED and pull.error is not None and self._view.is_current:
            self._view.show_error(pull.error)
        if pull is self.follower and pull.is_over:
            self._listener.model_offered()

    @property
    def is_awaiting(self) -> bool:
        """Whether a model is about to answer that is not loaded yet."""
        return self.awaited is not None and self.awaited.state not in (PullState.STOPPED, PullState.FAILED)

    @property
    def unfinished(self) -> tuple[str, str]:
        """The names of what is awaited and of what follows it, or '', if their downloads may go on later."""
        return _unfinished(self.awaited), _unfinished(self.follower)

    def _done(self, pull: Pull) -> None:
        self._names.clear()
        if pull is not self.awaited and pull.model is not None:
            self.offered = pull.model
            self._listener.model_offered()

    def withdraw_offer(self, name: str) -> None:
        """Mention a model no more: it answers now, or the user does not want it."""
        if self.offered == name:
            self.offered = ""
            self._listener.model_offered()

    def notice(self, *, waits: bool) -> str:
        """Return one line about what is awaited or offered. waits: whether a question waits for it."""
        if self.awaited is not None and self.is_awaiting:
            name, left = one_line(self.awaited.name, 40), self.awaited.seconds_left
            time = f", {rough_seconds(left)} left" if left else ""
            guide = "/guide QUESTION asks the guide now."
            if waits:
                return f"Your question is answered as soon as {name} is here{time}. {guide}"
            return f"{name} is on its way{time}: what you ask is answered once it is here. {guide}"
        if self.stand_in is not None:
            how = "switches to" if self.stand_in.is_here else "downloads"
            return f"{self.stand_in.sentence} F8 {how} it."
        if self.offered:
            is_better = self.follower is not None and self.follower.model == self.offered
            what = "A better model is ready" if is_better else "A model is ready"
            return f"{what}: {one_line(self.offered, 60)}. F5 switches to it."
        return ""


def _unfinished(pull: Pull | None) -> str:
    may_go_on = pull is not None and (
        not pull.is_over or isinstance(pull.error, HubUnreachable | OfflineMode)
    )
    return pull.name if pull is not None and may_go_on else ""


async def _end_of(task: asyncio.Task[None]) -> None:
    await task


def _about_hosted(row: RemoteRow) -> str:
    speed = f", {figure(row.speed.decode_tps)} tokens/s" if row.speed is not None else ""
    return f"{KINDS[row.model.kind]}{speed}"
