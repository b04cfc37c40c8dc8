"""A client's connection, with bounds that uvicorn has not: for who sends slowly, and who reads slowly."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""How long the head of a request may take to come."""
UNREAD_SECONDS = 20.0
"""How long an answer may wait for a client to read on."""
MOST_CONNECTIONS = 512
HEADER_BYTES = 64 * 1024


class Connection(H11Protocol):
    """Cuts off who does not speak, or does not listen."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            _stop(self._head)
            self._head = None
        else:  # bytes of a head that is not complete must not buy more time
            self._await_head()

    def on_response_complete(self) -> None:
        """See uvicorn: the client may ask again, or does not read to the end."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._drop_unread()
        elif self.conn.their_state is h11.SEND_BODY:  # of a request that was refused by its head
            self._await_head()

    def timeout_keep_alive_handler(self) -> None:
        """See uvicorn."""
        super().timeout_keep_alive_handler()
        self._drop_unread()

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client does not read."""
        super().pause_writing()
        self._drop_unread()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        if not self.transport.is_closing():
            _stop(self._unread)
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        _stop(self._head)
        _stop(self._unread)
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _drop_unread(self) -> None:
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
