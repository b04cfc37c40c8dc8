"""What the screens about models can know and do: the layers below as functions; tests put their own in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgechat.models.catalogue import CatalogueEntry
    from edgechat.models.hub.download import DownloadObserver, FetchedFile
    from edgechat.models.local.inventory import LocalModel
    from edgechat.models.local.removal import Removal
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.ranking.pulling import LocalModelEntry, PullDecision
    from edgechat.planner.ranking.survey import SurveyFindings, SurveyOverview
    from edgechat.settings import Backend

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelLibrary:
    """All of them may take a while, so they are called in threads, and raise EdgechatError."""

    catalogue: Callable[[], Sequence[CatalogueEntry]]
    """The models that can be asked for by name."""
    inventory: Callable[[], Sequence[ModelRow]]
    """What is on this machine, used last first."""
    overview: Callable[[Sequence[ModelRow]], SurveyOverview]
    """The catalogue and what is here, held against this machine."""
    ladder: Callable[[str], SurveyFindings]
    """Every quantization of one model, held against this machine."""
    decide: Callable[[str, str | None, Tell], PullDecision | LocalModelEntry]
    """What a pull of a model, and perhaps of one of its quantizations, would bring."""
    bring: Callable[[PullDecision, DownloadObserver, threading.Event], Sequence[Sequence[FetchedFile]]]
    """Downloads it; the event ends that with DownloadStopped."""
    removal: Callable[[LocalModel], Removal]
    """What deleting a model would remove. Raises NotRemovable."""
    offline: Callable[[], str]
    """What keeps edgechat off the network, in words; empty where nothing does."""

    @classmethod
    def real(cls, backend: Backend | None = None) -> ModelLibrary:
        """Return edgechat's own; nothing of them is imported before it is called.

        backend: what was asked to compute models, for which they are judged and brought.
        """
        overview, ladder = partial(_overview, backend), partial(_ladder, backend)
        decide = partial(_decide, backend)
        return cls(_catalogue, _inventory, overview, ladder, decide, _bring, _removal, _offline)


def _catalogue() -> Sequence[CatalogueEntry]:
    from edgechat.models.catalogue import catalogue

    return catalogue()


def _inventory() -> Sequence[ModelRow]:
    from edgechat.planner.listing import rows

    return rows()


def _overview(backend: Backend | None, rows: Sequence[ModelRow]) -> SurveyOverview:
    from edgechat import settings
    from edgechat.planner.ranking.survey import overview
    from edgechat.planner.request import PlanRequest, with_settings

    sound = [row.model for row in rows if not row.glance.damage]
    return overview(sound, with_settings(PlanRequest(backend=backend), settings.load()))


def _ladder(backend: Backend | None, name: str) -> SurveyFindings:
    from edgechat import settings
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.ranking.survey import one_model
    from edgechat.planner.request import PlanRequest, with_settings

    # What was never asked of the hub is not asked for by looking at a list.
    request = with_settings(PlanRequest(backend=backend), settings.load())
    return one_model(name, request, MachineDescription(), offline=True, insists=False)


def _decide(
    backend: Backend | None, name: str, quant: str | None, tell: Tell
) -> PullDecision | LocalModelEntry:
    from edgechat.models.request import parse_request
    from edgechat.planner.ranking.pulling import decide
    from edgechat.planner.request import FORMATS

    reads = FORMATS[backend] if backend is not None else None
    return decide(parse_request(name, quant, format=reads), backend=backend, tell=tell)


def _bring(
    decided: PullDecision, seen: DownloadObserver, stop: threading.Event
) -> Sequence[Sequence[FetchedFile]]:
    from edgechat.planner.ranking.pulling import bring

    return bring(decided, seen, stop)


def _removal(model: LocalModel) -> Removal:
    from edgechat.models.local.removal import removal

    return removal(model)


def _offline() -> str:
    from edgechat import settings
    from edgechat.base.offline import offline_by

    return offline_by() or ("offline = true in settings.toml" if settings.load().offline else "")
