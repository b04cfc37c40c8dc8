"""What the screens about models can know and do: the layers below as functions; tests put their own in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgechat.models.catalogue import CatalogueEntry
    from edgechat.models.hub.download import Fetched, Observer
    from edgechat.models.local.inventory import LocalModel
    from edgechat.models.local.removal import Removal
    from edgechat.planner.listing import Row
    from edgechat.planner.ranking.pulling import Decided, Here
    from edgechat.planner.ranking.survey import Found, Overview
    from edgechat.settings import Backend

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shelf:
    """All of them may take a while, so they are called in threads, and raise EdgechatError."""

    catalogue: Callable[[], Sequence[CatalogueEntry]]
    """The models that can be asked for by name."""
    inventory: Callable[[], Sequence[Row]]
    """What is on this machine, used last first."""
    overview: Callable[[Sequence[Row]], Overview]
    """The catalogue and what is here, held against this machine."""
    ladder: Callable[[str], Found]
    """Every quantization of one model, held against this machine."""
    decide: Callable[[str, str | None, Tell], Decided | Here]
    """What a pull of a model, and perhaps of one of its quantizations, would bring."""
    bring: Callable[[Decided, Observer, threading.Event], Sequence[Sequence[Fetched]]]
    """Downloads it; the event ends that with Stopped."""
    removal: Callable[[LocalModel], Removal]
    """What deleting a model would remove. Raises NotRemovable."""
    offline: Callable[[], str]
    """What keeps edgechat off the network, in words; empty where nothing does."""

    @classmethod
    def real(cls, backend: Backend | None = None) -> Shelf:
        """Return edgechat's own; nothing of them is imported before it is called.

        backend: what was asked to compute models, for which they are judged and brought.
        """
        overview, ladder = partial(_overview, backend), partial(_ladder, backend)
        decide = partial(_decide, backend)
        return cls(_catalogue, _inventory, overview, ladder, decide, _bring, _removal, _offline)


def _catalogue() -> Sequence[CatalogueEntry]:
    from edgechat.models.catalogue import catalogue

    return catalogue()


def _inventory() -> Sequence[Row]:
    from edgechat.planner.listing import rows

    return rows()


def _overview(backend: Backend | None, rows: Sequence[Row]) -> Overview:
    from edgechat import settings
    from edgechat.planner.prepare import settled
    from edgechat.planner.ranking.survey import overview
    from edgechat.planner.request import Wishes

    sound = [row.model for row in rows if not row.glance.damage]
    return overview(sound, settled(Wishes(backend=backend), settings.load()))


def _ladder(backend: Backend | None, name: str) -> Found:
    from edgechat import settings
    from edgechat.planner.machine import Described
    from edgechat.planner.prepare import settled
    from edgechat.planner.ranking.survey import one_model
    from edgechat.planner.request import Wishes

    # What was never asked of the hub is not asked for by looking at a list.
    wishes = settled(Wishes(backend=backend), settings.load())
    return one_model(name, wishes, Described(), offline=True, insists=False)


def _decide(backend: Backend | None, name: str, quant: str | None, tell: Tell) -> Decided | Here:
    from edgechat.models.request import wanted
    from edgechat.planner.placement.backends import FORMATS
    from edgechat.planner.ranking.pulling import decide

    reads = FORMATS[backend] if backend is not None else None
    return decide(wanted(name, quant, format=reads), backend=backend, tell=tell)


def _bring(decided: Decided, seen: Observer, stop: threading.Event) -> Sequence[Sequence[Fetched]]:
    from edgechat.planner.ranking.pulling import bring

    return bring(decided, seen, stop)


def _removal(model: LocalModel) -> Removal:
    from edgechat.models.local.removal import removal

    return removal(model)


def _offline() -> str:
    from edgechat import settings
    from edgechat.offline import offline_by

    return offline_by() or ("offline = true in settings.toml" if settings.load().offline else "")
