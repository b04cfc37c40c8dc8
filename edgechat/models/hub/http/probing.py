"""Whether the hub can be reached, and how fast it sends: one short request."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from edgechat.base.errors import EdgechatError, HubAnswerError, HubError, HubUnreachable
from edgechat.models.catalogue import CatalogueEntry
from edgechat.models.hub.endpoint import endpoint
from edgechat.models.hub.http.transfer import Client, ConnectionCut, HubResponse, ask_hub

SECONDS = 3.0
"""Time after which a hub that has not answered counts as unreachable."""
_SAMPLE = 4 << 20
"""Bytes of a file that are requested to measure the rate."""
_SAMPLE_SECONDS = 1.0
"""Time after which that ends."""
_LEAST = 1 << 19
"""Bytes from which a rate means something."""


@dataclass(frozen=True, slots=True)
class HubReach:
    """What a probe found."""

    problem: str = ""
    """Why the hub cannot be reached; empty if it can."""
    rate: float | None = None
    """Bytes per second; None if that was not measured."""


def probe_hub(entry: CatalogueEntry, seconds: float = SECONDS) -> HubReach:
    """Request the beginning of a model of the catalogue.

    A hub that refuses it can be reached as well. Raises SettingsError for an invalid HF_ENDPOINT.
    """
    hub, file = endpoint(), entry.file.format(quant=entry.quant)

    def sample(client: Client) -> float | None:
        with client.get(hub.file(client.repo, "main", file), {"Range": f"bytes=0-{_SAMPLE - 1}"}) as answer:
            return _rate(answer)

    try:
        return HubReach(rate=ask_hub(hub, entry.repo or "", seconds, sample))
    except (HubUnreachable, HubAnswerError) as error:
        return HubReach(problem=error.message)
    except HubError:
        return HubReach()


def _rate(answer: HubResponse) -> float | None:
    """Return the rate of a response from its second piece on, which is when the connection is warm."""
    n_bytes, began = -1, 0.0
    with suppress(EdgechatError, ConnectionCut):  # it has answered, which is enough
        for piece in answer.pieces:
            now = time.monotonic()
            if n_bytes < 0:
                n_bytes, began = 0, now
                continue
            n_bytes += len(piece)
            if now - began > _SAMPLE_SECONDS:
                break
    elapsed = time.monotonic() - began
    return n_bytes / elapsed if n_bytes >= _LEAST and elapsed > 0 else None
