"""Data for the models screens: local models are listed at once, and rated for this machine later."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from edgechat.base.errors import EdgechatError, ModelFileError
from edgechat.base.text import figure, rough
from edgechat.models.formats.header import senses
from edgechat.models.hub.names import parse_model_name
from edgechat.models.shipped import shipped_size
from edgechat.planner.ranking.ranking import RankedFile, SurveyFindings, SurveyOverview, Verdict
from edgechat.planner.ranking.suggestions import ASSUMED_RATE, FirstModel, first_models
from edgechat.tui.models.pulls import Pull, Pulls, PullState

if TYPE_CHECKING:
    from edgechat.models.catalogue import CatalogueEntry
    from edgechat.models.remote.listing import RemoteListing, RemoteRow
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.plan import LoadPlan
    from edgechat.tui.models.library import ModelLibrary


BEST = "★"
"""The mark of a recommended model."""


class ModelGroup(Enum):
    """Where models are located; the values are used as headings."""

    DOWNLOADING = "Downloading"
    NOT_DOWNLOADED = "Not downloaded"
    HERE = "On this machine"
    HOSTED = "On other servers"
    REMOTE = "For download"
    HUB = "On the hub"


@dataclass(frozen=True, slots=True)
class ModelItem:
    """What is known about a model so far."""

    key: str
    group: ModelGroup
    name: str
    """Its name in chats and pulls, as users type it."""
    quant: str | None = None
    size: int = 0
    """Size in bytes, or 0 while unknown."""
    entry: CatalogueEntry | None = None
    row: ModelRow | None = None
    """A local model's row."""
    option: RankedFile | None = None
    """Its rating for this machine; None until known."""
    is_measured: bool = False
    """Whether its speed was measured in earlier loads rather than predicted."""
    is_loaded: bool = False
    """Whether an edgechat process has it in memory.

    Its verdict is then 'in use', since its rating would count that memory as unavailable.
    """
    is_best: bool = False
    """Whether it is recommended."""
    pull: Pull | None = None
    hosted: RemoteRow | None = None
    """A remote model's row."""
    gone: str = ""
    """Why a server lists no models; in that case, `name` is the name of the server."""

    @property
    def damage(self) -> str:
        """Why its file cannot be loaded; empty if nothing is wrong."""
        return self.row.glance.damage if self.row is not None else ""

    @property
    def verdict(self) -> str:
        """A one- or two-word verdict, such as 'fits' or 'too large'; empty while unknown."""
        if self.damage:
            return "damaged"
        if self.group is ModelGroup.HOSTED:
            return "no answer" if self.gone else "ready"
        if self.is_loaded:
            return "in use"
        if self.option is not None:
            return self.option.verdict.label
        if self.row is not None:
            return "fits" if self.row.fits else "too large"
        return ""

    @property
    def is_too_large(self) -> bool:
        """Whether it is known not to fit at present."""
        return self.option is not None and self.option.verdict is Verdict.TOO_LARGE and not self.is_loaded

    @property
    def plan(self) -> LoadPlan | None:
        """The plan for loading it, or None if there is no plan yet or it does not fit."""
        return self.option.plan if self.option is not None else None

    @property
    def speed(self) -> float | None:
        """Tokens per second."""
        if self.hosted is not None:
            return self.hosted.speed.decode_tps if self.hosted.speed is not None else None
        plan = self.plan
        return plan.predicted.decode_tps if plan is not None and plan.predicted is not None else None

    @property
    def senses(self) -> str:
        """What it can do besides text, such as 'sees and hears'. Local models need a local projector."""
        if self.hosted is not None:
            return "sees" if self.hosted.model.sees else ""
        if self.row is not None:
            return senses(self.row.glance.modalities)
        return senses(self.entry.modalities) if self.entry is not None else ""

    @property
    def missing_senses(self) -> str:
        """What else it could do with its projector, which another pull would download."""
        return senses(self.row.model.missing_modalities) if self.row is not None else ""

    @property
    def survey_name(self) -> str:
        """The name under which all quantizations of the model are surveyed."""
        if self.entry is not None:
            return self.entry.name
        return self.row.model.full_name if self.row is not None else self.name

    @property
    def searchable_text(self) -> str:
        """The case-folded text that the filter searches."""
        parts = [self.name, self.quant or "", self.verdict, self.senses]
        if self.entry is not None:
            parts += [*self.entry.names, self.entry.description, self.entry.licence]
        if self.row is not None:
            parts.append(self.row.model.where)
        return " ".join(parts).casefold()


def speed(tps: float | None, *, is_measured: bool = False) -> str:
    """Format tokens per second: '~8' if predicted, '8.4' if measured."""
    if tps is None:
        return ""
    return figure(tps) if is_measured else rough(tps)


_NEARBY_SECONDS = 5.0
"""Seconds to wait for a search of the downloads and working folders.

Network shares may hang, and macOS may ask for permission to read the folders.
"""

P = ParamSpec("P")
T = TypeVar("T")


class KnownModels:
    """Everything known about the models. Calls the library in threads; all other operations are fast."""

    def __init__(self, library: ModelLibrary, pulls: Pulls, current: str | None = None) -> None:
        """current: name of the chat's model, which may be stored in a place that is not searched."""
        self.rows: Sequence[ModelRow] = ()
        self.hosted: Sequence[RemoteListing] = ()
        self.overview: SurveyOverview | None = None
        self.offline = ""
        """Why edgechat does not use the network; empty if it does."""
        self.unreachable = ""
        """Why the hub cannot be reached, as a sentence; empty if it can, or has not been contacted."""
        self.first: Sequence[FirstModel] = ()
        """Recommended models."""
        self.problem: EdgechatError | None = None
        """Why loading stopped, if it failed."""
        self.is_loading = False
        self._entries: Sequence[CatalogueEntry] = ()
        self._library, self._pulls, self._current = library, pulls, current
        self._measured_rate: float | None = None
        self._listed_pulls: list[Pull] = []
        """Pulls completed before the inventory was read, so the rows include their models."""
        self._surveys: dict[str, SurveyFindings | EdgechatError] = {}

    @property
    def rate(self) -> float | None:
        """Bytes per second during the last download or probe; None if unknown."""
        return self._pulls.rate or self._measured_rate

    async def load(self, on_progress: Callable[[], None], *, probe: bool = False) -> None:
        """Load everything except surveys, calling `on_progress` after each step.

        probe: whether to test the connection to the hub as well.
        """
        self.problem, self.is_loading, self.unreachable = None, True, ""
        try:
            self.offline = await asyncio.to_thread(self._library.offline)
            hosting = asyncio.create_task(self._host(on_progress))
            probing = asyncio.create_task(self._probe(on_progress)) if probe and not self.offline else None
            entries = await asyncio.to_thread(self._library.catalogue)
            done = [pull for pull in self._pulls.all if pull.state is PullState.DONE]
            rows = await asyncio.to_thread(self._library.inventory, self._current)
            self._listed_pulls, self.rows, self._entries = done, rows, entries
            on_progress()
            with contextlib.suppress(TimeoutError):
                nearby = _in_thread(self._library.nearby, rows)
                self.rows = [*rows, *await asyncio.wait_for(nearby, _NEARBY_SECONDS)]
                on_progress()
            overview = await _in_thread(self._library.overview, self.rows)
            await hosting
            if probing is not None:  # the recommendations depend on it
                await probing
            self.first = first_models(overview.found.options, self.rate or ASSUMED_RATE)
            self.overview = overview
        except EdgechatError as error:
            self.problem = error
        self.is_loading = False
        on_progress()

    async def _host(self, on_progress: Callable[[], None]) -> None:
        with contextlib.suppress(EdgechatError):  # a problem with the settings, reported elsewhere
            self.hosted = await _in_thread(self._library.hosted)
            on_progress()

    async def _probe(self, on_progress: Callable[[], None]) -> None:
        with contextlib.suppress(EdgechatError):  # reported when something is downloaded
            reach = await _in_thread(self._library.probe)
            self.unreachable, self._measured_rate = reach.problem, reach.rate
            on_progress()

    # Surveys: all quantizations of a model, rated for this machine.

    async def survey(self, item: ModelItem) -> bool:
        """Survey a model unless it has been surveyed already; return whether there is a new result."""
        if item.survey_name in self._surveys or not _can_be_surveyed(item):
            return False
        try:
            self._surveys[item.survey_name] = await _in_thread(self._library.survey, item.survey_name)
        except EdgechatError as error:
            self._surveys[item.survey_name] = error
        return True

    def forget_surveys(self) -> None:
        self._surveys.clear()

    def survey_of(self, item: ModelItem) -> SurveyFindings | None:
        """Return a model's survey, or None if there is none yet."""
        survey = self._surveys.get(item.survey_name)
        return None if isinstance(survey, EdgechatError) else survey

    def why_no_survey(self, item: ModelItem) -> str:
        """Return why a model has no survey, in words for users."""
        error = self._surveys.get(item.survey_name)
        if isinstance(error, EdgechatError):
            return error.message
        return "Inspecting its quantizations…" if _can_be_surveyed(item) else ""

    def surveyed(self, item: ModelItem) -> ModelItem:
        """Return the item, updated with what the survey found out about its quantization."""
        survey = self.survey_of(item)
        if survey is None:
            return item
        options = [
            option for option in (survey.chosen, *survey.options) if option and option.quant == item.quant
        ]
        same_size = [option for option in options if option.variant.size == item.size]
        return replace(item, option=(same_size or options)[0]) if options else item

    # The list.

    def items(self, query: str) -> dict[str, ModelItem]:
        """Return the models that match every word of the query, by key and in display order."""
        pulls = [pull for pull in self._pulls.all if pull not in self._listed_pulls]
        pulled = sorted(map(_pulled, pulls), key=lambda item: item.group is ModelGroup.NOT_DOWNLOADED)
        items = [*pulled, *self._local(), *self._hosted(), *self._remote({pull.name for pull in pulls})]
        words = query.casefold().split()
        matching = [item for item in items if all(word in item.searchable_text for word in words)]
        name = query.strip()
        if not matching and "/" in name and parse_model_name(name) is not None:
            matching = [ModelItem(f"hub:{name}", ModelGroup.HUB, name)]
        return {item.key: item for item in matching}

    def _local(self) -> Iterator[ModelItem]:
        overview = self.overview
        for row in self.rows:
            model = row.model
            option = overview.local.get(model.path) if overview is not None else None
            yield ModelItem(
                key=f"here:{model.full_name}",
                group=ModelGroup.HERE,
                name=model.name,
                quant=row.quant,
                size=model.size,
                entry=model.entry,
                row=row,
                option=option,
                is_loaded=row.use is not None and row.use.is_loaded,
                is_measured=bool(overview and option and row.use and overview.has_measured(option)),
                is_best=self._is_best(option),
            )

    def _hosted(self) -> Iterator[ModelItem]:
        """Yield models on other servers, and servers that list none."""
        if not self.hosted:
            return
        from edgechat.models.remote.listing import rows_of

        for row in rows_of(self.hosted):
            name = row.model.name
            yield ModelItem(f"at:{name}", ModelGroup.HOSTED, name, hosted=row, is_measured=True)
        for listing in self.hosted:
            if listing.error is not None:
                gone = f"{listing.error.message} {listing.error.hint or ''}".strip()
                yield ModelItem(f"at:{listing.server}", ModelGroup.HOSTED, listing.server, gone=gone)

    def _remote(self, pulled: set[str]) -> Iterator[ModelItem]:
        """Yield catalogue models that are neither local nor being pulled: best first, too large ones last."""
        listed = {row.model.entry.name for row in self.rows if row.model.entry is not None} | pulled
        entries = {
            entry.name: entry
            for entry in self._entries
            if entry.quality is not None and entry.name not in listed
        }
        options: Sequence[RankedFile | None] = [None] * len(entries)
        names: Sequence[str] = list(entries)
        if self.overview is not None:
            options = self.overview.found.options
            names = [option.variant.model for option in self.overview.found.options]
        for name, option in zip(names, options, strict=True):
            entry = entries.get(name)
            if entry is not None:
                yield ModelItem(
                    key=f"hub:{name}",
                    group=ModelGroup.REMOTE,
                    name=name,
                    quant=option.quant if option is not None else entry.quant,
                    size=option.variant.size if option is not None else _shipped_size(entry),
                    entry=entry,
                    option=option,
                    is_best=self._is_best(option),
                )

    def _is_best(self, option: RankedFile | None) -> bool:
        best = next((first.file for first in self.first if first.is_recommended), None)
        if option is None or best is None:
            return False
        return (best.variant.model, best.quant) == (option.variant.model, option.quant)


async def _in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a slow function in a thread that, unlike asyncio.to_thread, does not delay exiting the app."""
    outcome = Future[T]()

    def run() -> None:
        with contextlib.suppress(InvalidStateError):  # nobody is waiting any longer
            try:
                outcome.set_result(function(*args, **kwargs))
            except Exception as error:  # re-raised where it is awaited
                outcome.set_exception(error)

    threading.Thread(target=run, name="models", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _can_be_surveyed(item: ModelItem) -> bool:
    return not item.damage and item.group in (ModelGroup.HERE, ModelGroup.REMOTE)


def _pulled(pull: Pull) -> ModelItem:
    key = f"pull:{pull.name}:{pull.quant}"
    has_ended = pull.state in (PullState.STOPPED, PullState.FAILED)
    group = ModelGroup.NOT_DOWNLOADED if has_ended else ModelGroup.DOWNLOADING
    return ModelItem(key, group, pull.name, pull.quant, pull=pull)


def _shipped_size(entry: CatalogueEntry) -> int:
    with contextlib.suppress(ModelFileError):  # reported when the model is rated
        return shipped_size(entry, entry.quant or "") or 0
    return 0
