"""A slow link: a TCP proxy that delays data and limits the bytes per second.

    with SlowLink(sshd.port, rate=12.5e6, delay=0.001) as link:
        sshd.worker("far", port=link.port)

Each direction has its own rate; a round trip takes twice the delay.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time

_CHUNK = 16384


class SlowLink:
    """Forwards connections to a port on this machine."""

    def __init__(self, port: int, *, rate: float, delay: float) -> None:
        """rate: bytes per second; delay: seconds, one way."""
        self.rate, self.delay = rate, delay
        self.n_bytes = [0, 0]
        """Bytes that have passed there and back."""
        self.frozen = threading.Event()
        """While set, nothing passes and no connection is closed, as if the network were gone."""
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> SlowLink:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    # Keep little in transit, as between real machines.
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
                self._sockets += [near, far]
                for source, sink, way in ((near, far, 0), (far, near, 1)):
                    _Pump(self, source, sink, way)


class _Pump:
    """One direction of a connection: one thread reads, another writes when it is time."""

    def __init__(self, link: SlowLink, source: socket.socket, sink: socket.socket, way: int) -> None:
        self._link, self._source, self._sink, self._way = link, source, sink, way
        self._waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self._changed = threading.Condition()
        self._free_at = 0.0
        for target in (self._read, self._write):
            threading.Thread(target=target, daemon=True).start()

    def _read(self) -> None:
        link = self._link
        data = b"."
        while data:
            try:
                data = self._source.recv(_CHUNK)
            except OSError:
                data = b""
            now = time.perf_counter()
            self._free_at = max(now, self._free_at) + len(data) / link.rate
            link.n_bytes[self._way] += len(data)
            with self._changed:
                self._waiting.append((self._free_at + link.delay, data))
                self._changed.notify()
            # Leave what the wire cannot take yet with the sender.
            ahead = self._free_at - time.perf_counter() - 0.02
            if ahead > 0:
                time.sleep(ahead)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                at, data = self._waiting.popleft()
            if (pause := at - time.perf_counter()) > 0:
                time.sleep(pause)
            while self._link.frozen.is_set():
                time.sleep(0.05)
            try:
                if not data:
                    self._sink.shutdown(socket.SHUT_WR)
                    return
                self._sink.sendall(data)
            except OSError:
                with contextlib.suppress(OSError):
                    self._source.shutdown(socket.SHUT_RDWR)
                return
