"""A client's connection, with bounds that uvicorn has not: for who sends slowly, in crumbs or too much ahead,
for who reads slowly, and for who takes the connections of others.
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
"""How long the head of a request may take to come."""
UNREAD_SECONDS = 20.0
"""How long an answer may wait for a client to read on."""
MOST_CONNECTIONS = 512
_STRANGERS = 8
"""This part of them may be strangers, where there is no room: whoever comes is one at first."""
HEADER_BYTES = 64 * 1024
MOST_HEADERS = 100
_FREE_CHUNKS = 256
_CHUNK_BYTES = 256
"""What the chunks of a body have on average, when they are more than the free ones: each costs a turn."""
_AHEAD_BYTES = 64 * 1024
"""What a client may send behind a request that is being answered."""
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_BROKEN = Refusal("The request is malformed.", status=400)
_LONG_HEAD = Refusal(
    f"The request header has more than {MOST_HEADERS} lines or {HEADER_BYTES // 1024} KiB.", status=431
)
_TWO_LENGTHS = Refusal(
    "The length of the body is ambiguous, or not supported by HTTP/1.0: send either Content-Length or "
    "Transfer-Encoding.",
    status=400,
)
_CRUMBS = Refusal("The chunks of the body are too small: send larger ones.", status=400)


class Connection(H11Protocol):
    """Cuts off who does not speak, or does not listen."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn: _Requests = _Requests()
        self._since = self.loop.time()
        """When it came to what it does now: to send a head or a body, or to be silent."""
        self._ahead = bytearray()
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def is_known(self) -> bool:
        """Whether the last request has shown the key, or needed none."""
        return self.scope is not None and bool(self.scope.get(TRUSTED))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS and not self._make_room():
            transport.abort()
            return
        self._await_head()

    def _make_room(self) -> bool:
        """Drop one that has us wait, for who comes now; say whether there was one.

        First strangers, where they are many: they are not to lock out who has the key. Then who sends a body
        without end, then who is silent between requests; of each kind whoever does so for longest.
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
        else:  # bytes of a head that is not complete must not buy more time
            self._await_head()

    def handle_events(self) -> None:
        """See uvicorn, which reads no more while a next request waits, and would not see the client go."""
        super().handle_events()
        if self._is_answering():
            self.flow.resume_reading()

    def _is_answering(self) -> bool:
        """Say whether a request is here with its body, and its answer is not complete."""
        return self._is_asking() and self.conn.their_state is not h11.SEND_BODY

    def _is_asking(self) -> bool:
        """Say whether a request is here, and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _keep(self, data: bytes) -> None:
        """Keep what comes for the next request until its turn."""
        self._ahead += data
        if len(self._ahead) > _AHEAD_BYTES:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """See uvicorn: refuse what is no request."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # its answer has begun
            self.transport.abort()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True  # what it would still answer comes too late
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
        """See uvicorn: the client may ask again, or does not read to the end."""
        super().on_response_complete()
        self._since = self.loop.time()
        if self.transport.is_closing():
            self._drop_unread()
            return
        if self.conn.their_state is h11.SEND_BODY:  # of a request that was refused by its head
            self._await_head()
        if self._ahead:
            ahead, self._ahead = bytes(self._ahead), bytearray()
            self.data_received(ahead)

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


class _Requests(h11.Connection):
    """h11 with bounds on what reading costs, which it takes before it knows who asks."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEADER_BYTES)
        self.refusal: Refusal | None = None
        """Why what came is not read any further."""
        self._chunks = self._chunk_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """See h11."""
        if self.their_state is h11.IDLE:
            self._chunks = self._chunk_bytes = 0
            self._check_head()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check_lengths(event)
        if isinstance(event, h11.Data):
            self._check_chunk(event)
        return event

    def _check_head(self) -> None:
        """Look before it is parsed: a head of 12,000 lines takes 25 ms."""
        waiting, _ = self.trailing_data
        if waiting.count(b"\n") <= MOST_HEADERS and len(waiting) <= HEADER_BYTES:
            return
        end = _END_OF_HEAD.search(waiting)
        head = waiting[: end.end()] if end else waiting
        # The request's own line and the empty one are none of them.
        if head.count(b"\n") > MOST_HEADERS + 2 or len(head) > HEADER_BYTES:
            self._refuse(_LONG_HEAD)

    def _check_lengths(self, event: h11.Request) -> None:
        """Refuse what a proxy may have read otherwise (RFC 9112, 6.1): its next request would be another."""
        names = {name for name, _ in event.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
            self._refuse(_TWO_LENGTHS)

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
