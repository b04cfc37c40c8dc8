"""HTTP connection with limits on slow senders, tiny chunks, pipelined data and slow readers.

uvicorn lacks these limits. They must apply before an ASGI app sees a request, so the connection builds on
uvicorn's private H11Protocol. tests/server/test_connection.py lists the supported versions of uvicorn, and
checks every attribute used here.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgechat.server.exchange import TRUSTED
from edgechat.server.refusal import Refusal, openai_error

HEADER_SECONDS = 10.0
"""Time limit for receiving the head of a request, in seconds."""
UNREAD_SECONDS = 20.0
"""How many seconds a client may go without reading its response."""
MOST_CONNECTIONS = 512
_STRANGERS = 8
"""Clients without the key are evicted first once they hold more than 1 in this many connections."""
HEADER_BYTES = 64 * 1024
MOST_HEADERS = 100
_FREE_CHUNKS = 256
_CHUNK_BYTES = 256
"""Minimum average chunk size once there are more than _FREE_CHUNKS: each takes an event loop iteration."""
_AHEAD_BYTES = 64 * 1024
"""Limit on pipelined data: what a client sends while its previous request is still being answered."""
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_BROKEN = Refusal("The request is malformed.", status=400)
_LONG_HEAD = Refusal(
    f"The request header has more than {MOST_HEADERS} lines or {HEADER_BYTES // 1024} KiB.", status=431
)
_CRUMBS = Refusal("The chunks of the body are too small: send larger ones.", status=400)


class Connection(H11Protocol):
    """HTTP connection that drops idle clients and clients that do not read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn: _Requests = _Requests()
        self._since = self.loop.time()
        """When the current state began: sending a head, sending a body, or idle between requests."""
        self._ahead = bytearray()
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def is_known(self) -> bool:
        """Whether the last request included the key, or did not need it."""
        return self.scope is not None and bool(self.scope.get(TRUSTED))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS and not self._make_room():
            transport.abort()
            return
        self._await_head()

    def _make_room(self) -> bool:
        """Evict a waiting connection to make room. Return False if none can be evicted.

        Evicts the connection that has been in its state the longest, from the first of these groups that is
        not empty: clients without the key, if there are so many that they could lock out clients with the
        key; clients sending a body; clients between requests; any remaining clients without the key.
        """
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        strangers = [one for one in others if not one.is_known]
        known = [one for one in others if one.is_known and not one._is_answering()]
        sending = [one for one in known if one._is_asking()]
        too_many = len(strangers) > MOST_CONNECTIONS // _STRANGERS
        found = (too_many and strangers) or sending or known or strangers
        if not found:
            return False
        oldest = min(found, key=lambda one: one._since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._is_answering():
            self._keep(data)
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._since = self.loop.time()
        if self._is_asking():
            _stop(self._head)
            self._head = None
        else:  # an incomplete head does not extend the time limit
            self._await_head()

    def handle_events(self) -> None:
        """Keep reading while a request is being answered, so that a disconnect is noticed."""
        super().handle_events()
        if self._is_answering():
            self.flow.resume_reading()

    def _is_answering(self) -> bool:
        """Return True if a request has arrived in full but has not been answered yet."""
        return self._is_asking() and self.conn.their_state is not h11.SEND_BODY

    def _is_asking(self) -> bool:
        """Return True if the head of a request has arrived but no full answer has been sent yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _keep(self, data: bytes) -> None:
        """Buffer pipelined data until the previous request has been answered."""
        self._ahead += data
        if len(self._ahead) > _AHEAD_BYTES:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Reject a malformed request (overrides uvicorn)."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response has already started
            self.transport.abort()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # its response would arrive too late
        refusal = self.conn.refusal or _BROKEN
        status, body = HTTPStatus(refusal.status), openai_error(refusal)
        headers = [
            (b"content-type", b"application/json"),
            (b"x-content-type-options", b"nosniff"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to finish reading (overrides uvicorn)."""
        super().on_response_complete()
        self._since = self.loop.time()
        if self.transport.is_closing():
            self._drop_unread()
            return
        if self.conn.their_state is h11.SEND_BODY:  # the request was refused before its body had arrived
            self._await_head()
        if self._ahead:
            ahead, self._ahead = bytes(self._ahead), bytearray()
            self.data_received(ahead)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection (overrides uvicorn)."""
        super().timeout_keep_alive_handler()
        self._drop_unread()

    def pause_writing(self) -> None:
        """See asyncio.Protocol. Called when the client is not reading."""
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


class _Requests(h11.Connection):
    """An h11 connection that limits the cost of parsing, since parsing precedes authentication."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEADER_BYTES)
        self.refusal: Refusal | None = None
        """Why reading stopped, if it has."""
        self._chunks = self._chunk_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            self._chunks = self._chunk_bytes = 0
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._check_chunk(event)
        return event

    def _check_head(self) -> None:
        """Check the size of a head before it is parsed, because parsing 12,000 lines takes 25 ms."""
        waiting, _ = self.trailing_data
        if waiting.count(b"\n") <= MOST_HEADERS and len(waiting) <= HEADER_BYTES:
            return
        end = _END_OF_HEAD.search(waiting)
        head = waiting[: end.end()] if end else waiting
        # The request line and the empty line do not count.
        if head.count(b"\n") > MOST_HEADERS + 2 or len(head) > HEADER_BYTES:
            self._refuse(_LONG_HEAD)

    def _check_chunk(self, event: h11.Data) -> None:
        self._chunks += event.chunk_start
        self._chunk_bytes += len(event.data)
        if self._chunks > _FREE_CHUNKS and self._chunk_bytes < self._chunks * _CHUNK_BYTES:
            self._refuse(_CRUMBS)

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = refusal
        raise h11.RemoteProtocolError(refusal.message, error_status_hint=refusal.status)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
