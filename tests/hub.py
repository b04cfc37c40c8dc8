"""A hub for tests, on loopback, that answers like huggingface.co, or with faults that a test asks for.

    with Hub() as hub:
        hub.add("owner/repo", {"a-Q4_K_M.gguf": path, "README.md": b"..."})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.fail("store", Fault(cut_after=1000, times=1))
        hub.seen                                         every request, with its headers

As on the real hub, large files are on another host (here another port), to which the hub redirects.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from tests.hub_answers import RANGE, TOKEN, Server

__all__ = ["TOKEN", "Fault", "Hub", "Place", "Repo", "Seen", "took"]

Place = Literal["api", "resolve", "store"]
"""Who answers: the API, the hub's file URLs, or the host that stores large files."""


@dataclass
class Fault:
    """A fault in an answer. Everything not set here is as it should be."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers to override; an empty value removes a header."""
    body: bytes | None = None
    drop: bool = False
    """Close the connection without an answer."""
    wait: float = 0.0
    """Seconds before the answer starts."""
    pause: float = 0.0
    """Seconds before each piece of the body."""
    piece: int = 1 << 16
    """Size of a piece in bytes."""
    drip_headers: float = 0.0
    """Seconds before each header line."""
    cut_after: int | None = None
    """Bytes of the body to send before closing the connection."""
    reset: bool = False
    """Reset the connection at that point, as a router might."""
    ignore_range: bool = False
    chunked: bool = False
    """Send no length, but a chunked body."""
    more: bytes = b""
    """Bytes to send after the body."""
    times: int = -1
    """Number of answers affected; -1 for all."""
    after: int = 0
    """Number of answers to let through first."""


@dataclass(frozen=True)
class Seen:
    """A request that was received."""

    place: Place | None
    method: str
    path: str
    headers: Message

    @property
    def token(self) -> str | None:
        """The Authorization header, if any."""
        return self.headers.get("Authorization")

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte requested."""
        match = RANGE.fullmatch(self.headers.get("Range", ""))
        return (int(match[1]), int(match[2] or -1)) if match else None


@dataclass
class Repo:
    """A repository with a single commit."""

    name: str
    files: dict[str, bytes]
    commit: str
    tags: list[str]
    gated: bool | str = False
    private: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    """Overrides for what the API says."""

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()

    def in_store(self, name: str) -> bool:
        """Return True if a file is stored with Git LFS, like every GGUF file."""
        return name.lower().endswith((".gguf", ".safetensors", ".bin"))


class Hub:
    """The hub (`url`), and the host that stores its large files (`store_url`)."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        """tls: the context to answer over HTTPS with, including the certificate."""
        self.repos: dict[str, Repo] = {}
        self.seen: list[Seen] = []
        self.stopped = threading.Event()
        self.mended = threading.Event()
        self._faults: list[tuple[Place, Fault]] = []
        self._lock = threading.Lock()
        self._servers = [Server(self, store=store, tls=tls) for store in (False, True)]
        scheme = "https" if tls else "http"
        self.url, self.store_url = (
            f"{scheme}://127.0.0.1:{server.server_address[1]}" for server in self._servers
        )

    def __enter__(self) -> Hub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the hub; from then on, connections are refused."""
        self.stopped.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(
        self,
        name: str,
        files: Mapping[str, bytes | Path],
        *,
        gated: bool | str = False,
        private: bool = False,
        tags: tuple[str, ...] = ("gguf", "license:apache-2.0"),
        **info: Any,
    ) -> Repo:
        """Add a repository, or replace its commit."""
        held = {name: one if isinstance(one, bytes) else one.read_bytes() for name, one in files.items()}
        digest = hashlib.sha1(name.encode())
        for file, data in held.items():
            digest.update(file.encode() + hashlib.sha256(data).digest())
        repo = Repo(name, held, digest.hexdigest(), list(tags), gated, private, info)
        self.repos[name] = repo
        return repo

    def fail(self, place: Place, fault: Fault) -> None:
        """Apply a fault to the answers of `place` from now on."""
        with self._lock:
            self._faults.append((place, fault))
            self.mended.clear()

    def mend(self) -> None:
        """Remove all faults; answers being sent slowly are finished at once."""
        with self._lock:
            self._faults.clear()
            self.mended.set()

    def requests(self, place: Place) -> list[Seen]:
        """Return the requests made to `place`."""
        return [one for one in self.seen if one.place == place]

    def note(self, place: Place | None, method: str, path: str, headers: Message) -> None:
        """Record a request."""
        self.seen.append(Seen(place, method, path, headers))

    def fault(self, place: Place | None) -> Fault:
        """Return the fault to apply to the next answer of `place`."""
        with self._lock:
            for where, fault in self._faults:
                if where == place and fault.after > 0:
                    fault.after -= 1
                elif where == place and fault.times:
                    fault.times -= 1
                    return fault
        return Fault()

    def find(self, path: str) -> tuple[Repo | None, list[str]]:
        """Return the repository that a path belongs to, and the rest of the path."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        return self.repos.get("/".join(parts[:2])), parts[2:]


def took(start: float) -> float:
    """Return the seconds since `start`, a time from time.monotonic()."""
    return time.monotonic() - start
