"""What a screen about models knows by now: cheap things first, what is held against the machine later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgechat.base.errors import EdgechatError
from edgechat.tui.models.items import KnownModels, ModelGroup, ModelItem, items, with_plan
from edgechat.tui.models.pull import Pull, PullState

if TYPE_CHECKING:
    from edgechat.planner.ranking.survey import SurveyFindings
    from edgechat.tui.models.pulls import Pulls
    from edgechat.tui.models.shelf import ModelLibrary


class Holdings:
    """Asks the shelf in threads; everything else costs next to nothing."""

    def __init__(self, shelf: ModelLibrary, pulls: Pulls) -> None:
        self.known = KnownModels()
        self.offline = ""
        """What keeps edgechat off the network."""
        self.problem: EdgechatError | None = None
        """Why nothing more is known."""
        self.is_looking = False
        self._shelf, self._pulls = shelf, pulls
        self._settled: list[Pull] = []  # done before it was last looked what is here
        self._ladders: dict[str, SurveyFindings | EdgechatError] = {}

    async def load(self, told: Callable[[], None]) -> None:
        """Find out everything but ladders; `told` hears of each step."""
        self.problem, self.is_looking = None, True
        try:
            self.offline = await asyncio.to_thread(self._shelf.offline)
            entries = await asyncio.to_thread(self._shelf.catalogue)
            done = [one for one in self._pulls.all if one.state is PullState.DONE]
            rows = await asyncio.to_thread(self._shelf.inventory)
            self._settled = done
            self.known = replace(self.known, rows=rows, entries=entries)
            told()
            overview = await asyncio.to_thread(self._shelf.overview, rows)
            self.known = replace(self.known, overview=overview)
        except EdgechatError as error:
            self.problem = error
        self.is_looking = False
        told()

    async def look(self, item: ModelItem) -> bool:
        """Hold the quantizations of a model against the machine, once; say whether something new is known."""
        if item.asks in self._ladders or not _has_ladder(item):
            return False
        try:
            self._ladders[item.asks] = await asyncio.to_thread(self._shelf.ladder, item.asks)
        except EdgechatError as error:
            self._ladders[item.asks] = error
        return True

    def forget(self, name: str | None = None) -> None:
        """Let the ladder of a model, or of all, be looked at anew."""
        if name is None:
            self._ladders.clear()
        else:
            self._ladders.pop(name, None)

    def items(self, wanted: str) -> dict[str, ModelItem]:
        """Return the lines by their keys, in their order."""
        coming = tuple(one for one in self._pulls.all if one not in self._settled)
        known = replace(self.known, pulls=coming)
        return {one.key: one for one in items(known, wanted)}

    def closely(self, item: ModelItem) -> ModelItem:
        """Return an item with what its ladder says of it."""
        return with_plan(item, self.ladder_of(item))

    def ladder_of(self, item: ModelItem) -> SurveyFindings | None:
        """Return the quantizations of a model, or None while they are not known."""
        found = self._ladders.get(item.asks)
        return None if found is None or isinstance(found, EdgechatError) else found

    def why_no_ladder(self, item: ModelItem) -> str:
        """Return why they are not known."""
        found = self._ladders.get(item.asks)
        if isinstance(found, EdgechatError):
            return found.message
        return "Inspecting its quantizations…" if _has_ladder(item) else ""


def _has_ladder(item: ModelItem) -> bool:
    return not item.damage and item.section in (ModelGroup.HERE, ModelGroup.REMOTE)
