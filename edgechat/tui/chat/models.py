"""Which model answers: one taken by name, from the models screen, at the first run, or as a pull ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgechat.errors import ChatBusy, EdgechatError, EngineClosed
from edgechat.text import one_line
from edgechat.tui.models.pulls import Pull, Pulls, PullState
from edgechat.tui.models.shelf import ModelLibrary

if TYPE_CHECKING:
    from edgechat.tui.chat.screen import ChatScreen
    from edgechat.tui.models.first_run import FirstRunChoice


class ModelController:
    """The models for the chat screen: one that answers, and those that are being pulled."""

    def __init__(self, screen: ChatScreen, shelf: ModelLibrary) -> None:
        self._screen = screen
        self._shelf = shelf
        self._names: dict[bool, list[tuple[str, str]]] = {}
        self._awaited: Pull | None = None
        """The pull after which its model answers at once."""
        self.pulls = Pulls(shelf)
        self.pulls.listen(self._heard)
        self.pulls.on_done = self._pulled

    async def take(self, name: str) -> None:
        """Let a model answer from now on, and load it. Raises EdgechatError."""
        screen = self._screen
        if screen.desk.answering:
            raise ChatBusy("An answer is being written.", hint="Stop it first: Escape.")
        screen.talk.tell(f"Looking at {one_line(name, 60)}")
        try:
            plan = await screen.session.switch_model(name)
            screen.tell_plan(plan)
            engine = await screen.session.engine()
            await engine.start(screen.tell_load)
            await screen.session.remember_model()
        except EngineClosed:  # yet another one was taken, which tells of itself
            return
        except EdgechatError:
            self._taken()
            raise
        self._taken()
        screen.notify(f"{one_line(plan.model_name, 60)} answers from now on.", timeout=4, markup=False)

    def _taken(self) -> None:
        self._screen.talk.tell("")
        self._screen.panels.shows_model()

    async def show(self) -> None:
        """Show the models, and chat with the one that is chosen there. Raises EdgechatError."""
        from edgechat.tui.models.screen import ModelsScreen

        chosen = await self._screen.app.push_screen_wait(
            ModelsScreen(self._shelf, self.pulls, self._screen.session.model)
        )
        if chosen is not None and chosen != self._screen.session.model:
            await self.take(chosen)

    async def first_run(self) -> None:
        """Say what this machine can carry, and let a model be chosen. Raises EdgechatError."""
        from edgechat.tui.models.first_run import FirstRun

        chosen: FirstRunChoice | None = await self._screen.app.push_screen_wait(
            FirstRun(self._shelf, self.pulls)
        )
        if chosen is None:
            return
        self._awaited = chosen.coming
        if chosen.model != self._screen.session.model:
            await self.take(chosen.model)

    def pull(self, name: str) -> None:
        """Bring a model in the background."""
        self.pulls.start(name)

    def names(self, *, remote: bool) -> Sequence[tuple[str, str]]:
        """Return the models that are here, or those of the catalogue, each with a word; empty at first."""
        if remote not in self._names:
            self._names[remote] = []
            self._screen.run_worker(self._find_names(remote), group="names", exit_on_error=False)
        return self._names[remote]

    async def _find_names(self, remote: bool) -> None:
        from edgechat.models.catalogue import catalogue
        from edgechat.models.local.inventory import inventory
        from edgechat.text import mebibytes

        if remote:
            entries = await asyncio.to_thread(catalogue)
            self._names[True] = [(one.name, one.description) for one in entries if one.repo is not None]
        else:
            found = await asyncio.to_thread(inventory)
            self._names[False] = [
                (one.name, f"{mebibytes(one.size)}, {one.place.value}") for one in found.models
            ]

    def _heard(self, pull: Pull) -> None:
        """Show how a pull goes, and what went wrong with it where the models screen does not."""
        screen = self._screen
        screen.status.pulling = self.pulls.line()
        if pull.state is PullState.FAILED and pull.error is not None and screen.is_current:
            screen.tell_error(pull.error)

    def _pulled(self, pull: Pull) -> None:
        self._names.clear()
        if pull.model is None:
            return
        if pull is self._awaited and not self._screen.desk.answering:
            self._screen.take_model(pull.model)
            return
        name = one_line(pull.model, 60)
        self._screen.notify(f"{name} is here. /model {name} chats with it.", timeout=15, markup=False)
