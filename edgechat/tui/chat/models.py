"""The chat's models: the current one, and those that are listed, downloaded, awaited or offered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgechat.base.errors import EdgechatError, EngineError, HubUnreachable, ModelNotFound, OfflineMode
from edgechat.base.text import figure, mebibytes, one_line, rough_seconds
from edgechat.chat.model_choice import (
    DEFAULT_MODEL,
    lasting_name,
    remember_downloads,
    remembered_downloads,
)
from edgechat.chat.session import ChatSession
from edgechat.chat.storage.store import Store
from edgechat.models.remote.model import KINDS
from edgechat.tui.chat.views import ChatView
from edgechat.tui.models.library import ModelLibrary
from edgechat.tui.models.pulls import Pull, Pulls, PullState

if TYPE_CHECKING:
    from edgechat.models.remote.listing import RemoteRow
    from edgechat.planner.ranking.suggestions import StandIn

_HOSTED_SECONDS = 0.7
"""Seconds to wait for other servers before listing models for the first time."""


class ChatModels:
    """The models that can be chosen, and background downloads."""

    def __init__(
        self,
        view: ChatView,
        session: ChatSession,
        library: ModelLibrary,
        *,
        on_awaited: Callable[[Pull], None],
        has_waiting: Callable[[], bool],
    ) -> None:
        """on_awaited: called when the awaited download makes progress or ends.

        has_waiting: returns whether a question is waiting in the conversation on screen.
        """
        self.library = library
        self.pulls = Pulls(library)
        self.pulls.listen(self._changed)
        self.pulls.on_done = self._done
        self.awaited: Pull | None = None
        """Download of the model that will answer once complete. Until then, it can be stopped and resumed."""
        self.follower: Pull | None = None
        """Download of a better model, which follows the awaited one."""
        self.offered = ""
        """The last model downloaded, if the user is still invited to switch to it, or ''."""
        self.stand_in: StandIn | None = None
        """Model to use instead of one that cannot see images or is not responding."""
        self._view = view
        self._session = session
        self._on_awaited = on_awaited
        self._has_waiting = has_waiting
        self._names: dict[bool, list[tuple[str, str]]] = {}
        self._hosted: list[tuple[str, str]] = []
        """Models that other servers listed when they were last asked."""
        self._is_named = session.model is not None
        """Whether the user named the model when starting the app."""
        self._unfinished = ("", "")
        """The downloads to resume at the next start; see `remember_downloads`."""
        self._is_closed = False

    async def close(self) -> None:
        """Stop the downloads; awaited ones are resumed at the next start."""
        self._is_closed = True
        await self.pulls.close()

    @property
    def current(self) -> str | None:
        """Name of the model in use, or its path if it is a file."""
        model = self._session.model
        return lasting_name(model) if model is not None else None

    # Names.

    def names(self, *, remote: bool) -> Sequence[tuple[str, str]]:
        """Return the names of the local models or of the catalogue's models, each with a short description.

        The most recently used local model comes first. The first call starts a search and returns nothing.
        """
        if remote not in self._names:
            self._names[remote] = []
            self._view.run_in_background(self.find_names(remote=remote), ignore_errors=True)
            if not remote:
                self._view.run_in_background(self._ask_servers(), ignore_errors=True)
        return self._names[remote]

    async def find_names(self, *, remote: bool) -> Sequence[tuple[str, str]]:
        """Look up the names and return them. Raises SettingsError."""
        names = await asyncio.to_thread(self._remote_names if remote else self._local_names)
        self._names[remote] = names
        return names

    def _remote_names(self) -> list[tuple[str, str]]:
        entries = self.library.catalogue()
        return [(entry.name, entry.description) for entry in entries if entry.repo is not None]

    def _local_names(self) -> list[tuple[str, str]]:
        rows = self.library.inventory(self.current)
        usable = (row.model for row in rows if not row.glance.damage)
        local = [(model.chat_name, f"{mebibytes(model.size)}, {model.where}") for model in usable]
        return [*local, *self._hosted]

    async def _ask_servers(self) -> None:
        """Ask other servers which models they have. Raises SettingsError."""
        listed = await asyncio.to_thread(self.library.hosted)
        if listed:
            from edgechat.models.remote.listing import rows_of

            self._hosted = [(row.model.name, _about_hosted(row)) for row in rows_of(listed)]
            await self.find_names(remote=False)

    async def switchable(self) -> list[tuple[str, str, bool]]:
        """Return the models to switch to: name, short description, and whether the model is on this machine.

        The offered model comes first, then the local ones, then the catalogue's. Raises SettingsError.
        """
        asking = asyncio.create_task(self._ask_servers())
        self._view.run_in_background(asyncio.wait_for(asking, None), ignore_errors=True)
        if not self._hosted:  # otherwise show the known ones now, and any others next time
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

    # Offers.

    async def find_seeing(self) -> None:
        """Offer a model that can see images, if one fits. Raises EdgechatError."""
        from edgechat.planner.ranking.suggestions import seeing_model

        library, current = self.library, self.current
        seeing = await asyncio.to_thread(seeing_model, lambda: library.inventory(current), library.overview)
        offline = await asyncio.to_thread(library.offline)
        self.stand_in = None if seeing is None or (offline and not seeing.is_here) else seeing
        self._offer_changed()

    async def find_local(self) -> None:
        """Offer a local model, if one fits. Raises EdgechatError."""
        from edgechat.planner.ranking.suggestions import local_model

        self.stand_in = local_model(await asyncio.to_thread(self.library.inventory, None))
        self._offer_changed()

    def find_stand_in(self, error: EdgechatError) -> None:
        """Offer a local model if a remote one is not responding."""
        plan = self._session.plan
        if plan is not None and plan.remote is not None and isinstance(error, EngineError | ModelNotFound):
            self._view.run_in_background(self.find_local(), ignore_errors=True)

    def take_stand_in(self) -> StandIn | None:
        """Withdraw the offer of a stand-in and return that model."""
        stand_in, self.stand_in = self.stand_in, None
        self._offer_changed()
        return stand_in

    def withdraw_offer(self, name: str) -> None:
        """Stop offering a model, because it is now in use or the user does not want it."""
        if self.offered == name:
            self.offered = ""
            self._offer_changed()

    def _offer_changed(self) -> None:
        self.remember()
        self.show_notice()
        self._view.refresh_chat()

    def switched_to(self, name: str) -> None:
        """Discard the awaited download and any offers, now that this model is in use."""
        self.awaited = self.stand_in = None
        self.withdraw_offer(name)
        self.remember()

    # Downloads.

    @property
    def is_awaiting(self) -> bool:
        """Whether questions are waiting for a model that is being downloaded."""
        return self.awaited is not None and self.awaited.state not in (PullState.STOPPED, PullState.FAILED)

    def wait_for(self, pull: Pull | None, follower: Pull | None = None) -> None:
        """Wait for the download of a model that will then answer. follower: a better model's download."""
        self.awaited, self.follower = pull, follower
        self.remember()
        if pull is not None:
            self._on_awaited(pull)  # it may already have ended

    async def resume(self, store: Store) -> None:
        """Resume the downloads that were in progress when the app was closed. Raises StoreError."""
        names = await remembered_downloads(store)
        if any(names) and not self._is_named:
            awaited, follower = (self.pulls.start(name) if name else None for name in names)
            answers = self._session.model == DEFAULT_MODEL  # False if another model has been chosen since
            self.wait_for(awaited if answers else None, follower or (None if answers else awaited))

    def remember(self) -> None:
        """Store the names of unfinished downloads, to be resumed at the next start."""
        names = _unfinished(self.awaited), _unfinished(self.follower)
        if names != self._unfinished and not self._is_closed:
            self._unfinished = names
            self._view.run_in_background(self._save_unfinished(*names))

    async def _save_unfinished(self, awaited: str, follower: str) -> None:
        await remember_downloads(await self._session.store(), awaited, follower)

    def _changed(self, pull: Pull) -> None:
        self._view.show_downloads(self.pulls.line())
        if self.awaited is not None and pull.name == self.awaited.name:
            self.awaited = pull if pull in self.pulls.all else None  # None once removed from the list
            if self.awaited is not None:
                self._on_awaited(pull)
        # The models screen shows its own errors.
        elif pull.state is PullState.FAILED and pull.error is not None and self._view.is_current:
            self._view.show_error(pull.error)
        if pull is self.follower and pull.is_over:
            self._offer_changed()

    def _done(self, pull: Pull) -> None:
        self._names.clear()
        if pull is not self.awaited and pull.model is not None:
            self.offered = pull.model
            self._offer_changed()

    def show_notice(self) -> None:
        """Show a line about the awaited download or the model on offer."""
        self._view.show_notice(self._notice())

    def _notice(self) -> str:
        if self.awaited is not None and self.is_awaiting:
            name, left = one_line(self.awaited.name, 40), self.awaited.seconds_left
            time = f", {rough_seconds(left)} left" if left else ""
            guide = "/guide QUESTION asks the guide now."
            if self._has_waiting():
                return f"Your question will be answered once {name} is ready{time}. {guide}"
            return f"{name} is downloading{time}: your questions will be answered once it is ready. {guide}"
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


def _about_hosted(row: RemoteRow) -> str:
    speed = f", {figure(row.speed.decode_tps)} tokens/s" if row.speed is not None else ""
    return f"{KINDS[row.model.kind]}{speed}"
