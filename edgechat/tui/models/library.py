"""Model library: lower-layer functions for the models screens, replaceable in tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgechat.models.catalogue import CatalogueEntry
    from edgechat.models.hub.client import HubReach
    from edgechat.models.hub.download import DownloadObserver, FetchedFile
    from edgechat.models.local.inventory import LocalModel
    from edgechat.models.local.upkeep import Removal
    from edgechat.models.remote.listing import RemoteListing
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.ranking.pulling import LocalModelEntry, PullDecision
    from edgechat.planner.ranking.ranking import SurveyFindings, SurveyOverview
    from edgechat.settings import Backend

Tell = Callable[[str], None]
Workers = tuple[str, ...] | None
"""Worker addresses, or None to use those in settings.toml."""


@dataclass(frozen=True, slots=True)
class ModelLibrary:
    """Functions that may be slow and are therefore called in threads. They raise EdgechatError."""

    catalogue: Callable[[], Sequence[CatalogueEntry]]
    inventory: Callable[[str | None], Sequence[ModelRow]]
    """Local models, most recently used first; includes the one named, wherever it is stored."""
    nearby: Callable[[Sequence[ModelRow]], Sequence[ModelRow]]
    """Models in the downloads and working folders that are not listed already."""
    overview: Callable[[Sequence[ModelRow]], SurveyOverview]
    """The catalogue's models and the local ones, rated for this machine."""
    survey: Callable[[str], SurveyFindings]
    """Every quantization of a model, rated for this machine."""
    decide: Callable[[str, str | None, Tell], PullDecision | LocalModelEntry]
    """What pulling a model, optionally at a given quantization, would download."""
    download: Callable[[PullDecision, DownloadObserver, threading.Event], Sequence[Sequence[FetchedFile]]]
    """Downloads a model. Setting the event stops the download, which raises DownloadStopped."""
    removal: Callable[[LocalModel], Removal]
    """The files that deleting a model would remove. Raises NotRemovable."""
    offline: Callable[[], str]
    """Why edgechat does not use the network, in words for users; empty if it does."""
    probe: Callable[[], HubReach]
    """Whether the hub can be reached, and how fast it sends data."""
    hosted: Callable[[], Sequence[RemoteListing]] = tuple
    """Models on other servers; takes at most two seconds."""

    @classmethod
    def real(cls, backend: Backend | None = None, workers: Workers = None) -> ModelLibrary:
        """Return edgechat's own functions, which import what they need when they are called.

        backend: the backend to rate and download models for. workers: see `planner.request`.
        """
        return cls(
            catalogue=_catalogue,
            inventory=_inventory,
            nearby=_nearby,
            overview=partial(_overview, backend, workers),
            survey=partial(_survey, backend, workers),
            decide=partial(_decide, backend),
            download=_download,
            removal=_removal,
            offline=_offline,
            probe=_probe,
            hosted=_hosted,
        )


def _catalogue() -> Sequence[CatalogueEntry]:
    from edgechat.models.catalogue import catalogue

    return catalogue()


def _inventory(current: str | None) -> Sequence[ModelRow]:
    from edgechat.planner.listing import rows

    return rows(current=current)


def _nearby(listed: Sequence[ModelRow]) -> Sequence[ModelRow]:
    from edgechat.planner.listing import rows_nearby

    return rows_nearby(listed)


def _overview(backend: Backend | None, workers: Workers, rows: Sequence[ModelRow]) -> SurveyOverview:
    from edgechat import settings
    from edgechat.planner.prepare import overview
    from edgechat.planner.request import PlanRequest, with_settings

    sound = [row.model for row in rows if not row.glance.damage]
    return overview(sound, with_settings(PlanRequest(backend=backend, workers=workers), settings.load()))


def _survey(backend: Backend | None, workers: Workers, name: str) -> SurveyFindings:
    from edgechat import settings
    from edgechat.planner.machine import MachineDescription
    from edgechat.planner.prepare import one_model
    from edgechat.planner.request import PlanRequest, with_settings

    # Browsing the list sends no requests to the hub.
    request = with_settings(PlanRequest(backend=backend, workers=workers), settings.load())
    return one_model(name, request, MachineDescription(), offline=True, insists=False)


def _decide(
    backend: Backend | None, name: str, quant: str | None, tell: Tell
) -> PullDecision | LocalModelEntry:
    from edgechat.models.request import parse_request
    from edgechat.planner.ranking.pulling import decide
    from edgechat.planner.request import FORMATS

    format = FORMATS[backend] if backend is not None else None
    return decide(parse_request(name, quant, format=format), backend=backend, tell=tell)


def _download(
    decision: PullDecision, observer: DownloadObserver, stop: threading.Event
) -> Sequence[Sequence[FetchedFile]]:
    from edgechat.planner.ranking.pulling import bring

    return bring(decision, observer, stop)


def _removal(model: LocalModel) -> Removal:
    from edgechat.models.local.upkeep import removal

    return removal(model)


def _offline() -> str:
    from edgechat import settings
    from edgechat.base.network.offline import offline_by

    return offline_by() or ("offline = true in settings.toml" if settings.load().offline else "")


def _probe() -> HubReach:
    from edgechat.models.catalogue import catalogue
    from edgechat.models.hub.client import HubReach, probe_hub

    entry = next((entry for entry in catalogue() if entry.repo is not None), None)
    return probe_hub(entry) if entry is not None else HubReach()


def _hosted() -> Sequence[RemoteListing]:
    from edgechat import settings

    remotes = settings.load().remotes
    if not remotes:
        return ()
    import asyncio

    from edgechat.models.remote.listing import listings

    return asyncio.run(listings(remotes))
