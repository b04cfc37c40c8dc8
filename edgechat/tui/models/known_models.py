"""What a screen about models knows by now: cheap things first, what is held against the machine later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edgechat.base.errors import EdgechatError
from edgechat.tui.models.items import ModelFacts, ModelGroup, ModelItem, items, with_plan
from edgechat.tui.models.pull import Pull, PullState

if TYPE_CHECKING:
    from edgechat.planner.ranking.survey import SurveyFindings
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.models.pulls import Pulls


class KnownModels:
    """Asks the library in threads; everything else costs next to nothing."""

    def __init__(self, library: ModelLibrary, pulls: Pulls) -> None:
        self.known = ModelFacts()
        self.offline = ""
        """What keeps edgechat off the network."""
        self.problem: EdgechatError | None = None
        """Why nothing more is known."""
        self.is_looking = False
        self._library, self._pulls = library, pulls
        self._settled: list[Pull] = []  # done before it was last looked what is here
        self._surveys: dict[str, SurveyFindings | EdgechatError] = {}

    async def load(self, told: Callable[[], None]) -> None:
        """Find out everything but surveys; `told` hears of each step."""
        self.problem, self.is_looking = None, True
        try:
            self.offline = await asyncio.to_thread(self._library.offline)
            entries = await asyncio.to_thread(self._library.catalogue)
            done = [one for one in self._pulls.all if one.state is PullState.DONE]
            rows = await asyncio.to_thread(self._library.inventory)
            self._settled = done
            self.known = replace(self.known, rows=rows, entries=entries)
            told()
            overview = await asyncio.to_thread(self._library.overview, rows)
            self.known = replace(self.known, overview=overview)
        except EdgechatError as error:
            self.problem = error
        self.is_looking = False
        told()

    async def look(self, item: ModelItem) -> bool:
        """Hold the quantizations of a model against the machine, once; say whether something new is known."""
        if item.asks in self._surveys or not _can_be_surveyed(item):
            return False
        try:
            self._surveys[item.asks] = await asyncio.to_thread(self._library.survey, item.asks)
        except EdgechatError as error:
            self._surveys[item.asks] = error
        return True

    def forget(self, name: str | None = None) -> None:
        """Let the survey of a model, or of all, be looked at anew."""
        if name is None:
            self._surveys.clear()
        else:
            self._surveys.pop(name, None)

    def items(self, wanted: str) -> dict[str, ModelItem]:
        """Return the lines by their keys, in their order."""
        coming = tuple(one for one in self._pulls.all if one not in self._settled)
        known = replace(self.known, pulls=coming)
        return {one.key: one for one in items(known, wanted)}

    def closely(self, item: ModelItem) -> ModelItem:
        """Return an item with what its survey says of it."""
        return with_plan(item, self.survey_of(item))

    def survey_of(self, item: ModelItem) -> SurveyFindings | None:
        """Return the quantizations of a model, or None while they are not known."""
        found = self._surveys.get(item.asks)
        return None if found is None or isinstance(found, EdgechatError) else found

    def why_no_survey(self, item: ModelItem) -> str:
        """Return why they are not known."""
        found = self._surveys.get(item.asks)
        if isinstance(found, EdgechatError):
            return found.message
        return "Inspecting its quantizations…" if _can_be_surveyed(item) else ""


def _can_be_surveyed(item: ModelItem) -> bool:
    return not item.damage and item.group in (ModelGroup.HERE, ModelGroup.REMOTE)
