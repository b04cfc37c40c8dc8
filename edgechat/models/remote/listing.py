"""Listings of the models on all remote engines, requested concurrently and with a short timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from edgechat.base.errors import EdgechatError, RemoteUnreachable
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.discovery import models_of
from edgechat.models.remote.measured import MeasuredSpeed, measured_speeds
from edgechat.models.remote.model import HostedModel
from edgechat.settings import RemoteKind, RemoteServer

LIST_SECONDS = 2.0
"""Seconds to wait for each server when listing models."""


class RemoteListing(msgspec.Struct, frozen=True, kw_only=True):
    """The result of asking a server for its models."""

    server: str
    kind: RemoteKind | None = None
    models: Sequence[HostedModel] = ()
    """The models that can be used for chat."""
    error: EdgechatError | None = None


class RemoteRow(msgspec.Struct, frozen=True):
    """A model and its measured speed."""

    model: HostedModel
    speed: MeasuredSpeed | None


async def listing_of(name: str, server: RemoteServer, seconds: float = LIST_SECONDS) -> RemoteListing:
    """Ask one server for its models."""
    client = RemoteClient(name, server)
    try:
        async with asyncio.timeout(seconds):
            kind, models = await models_of(client)
        return RemoteListing(server=name, kind=kind, models=[model for model in models if model.chats])
    except TimeoutError:
        error: EdgechatError = RemoteUnreachable(
            f"{name} does not answer.", hint=f"Its address: {client.root}"
        )
    except EdgechatError as exc:
        error = exc
    finally:
        await client.close()
    return RemoteListing(server=name, error=error)


async def listings(remotes: Mapping[str, RemoteServer]) -> list[RemoteListing]:
    """Ask all servers concurrently, which takes only as long as the slowest response."""
    return await asyncio.gather(*(listing_of(name, server) for name, server in remotes.items()))


def rows_of(listed: Sequence[RemoteListing]) -> list[RemoteRow]:
    """Return the models in the listings, along with their measured speeds."""
    speeds = measured_speeds()
    models = (model for listing in listed for model in listing.models)
    return [RemoteRow(model, speeds.get(model.name)) for model in models]
