"""A hub of the tests' own, on loopback, which answers as huggingface.co does; or not, where a test wants it.

    with Hub() as hub:
        hub.add("owner/repo", {"a-Q4_K_M.gguf": path, "README.md": b"..."})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.fail("store", Fault(cut_after=1000, times=1))
        hub.seen                                         every request, with its headers

As on the real one, large files lie on another host (here another port), to which the hub redirects.
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
"""Who answers: the API, the hub's addresses of files, or the host that keeps large files."""


@dataclass
class Fault:
    """Something that goes wrong with an answer; what is left alone is as it should be."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Set on top; an empty value takes a header away."""
    body: bytes | None = None
    drop: bool = False
    """Hang up without an answer."""
    wait: float = 0.0
    """Seconds before the answer begins."""
    pause: float = 0.0
    """Seconds before each piece of the body."""
    piece: int = 1 << 16
    """Bytes of a piece."""
    drip_headers: float = 0.0
    """Seconds before each line of the headers."""
    cut_after: int | None = None
    """Bytes of the body after which the connection is closed."""
    reset: bool = False
    """Break the connection off there with a reset, as a router does."""
    ignore_range: bool = False
    chunked: bool = False
    """Say no length: the body ends where a chunk says so."""
    more: bytes = b""
    """Sent after the body."""
    times: int = -1
    """Answers that it spoils; -1 all."""
    after: int = 0
    """Answers that it leaves alone first."""


@dataclass(frozen=True)
class Seen:
    """A request that came."""

    place: Place | None
    method: str
    path: str
    headers: Message

    @property
    def token(self) -> str | None:
        """What it would have been let in with."""
        return self.headers.get("Authorization")

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last byte asked for."""
        match = RANGE.fullmatch(self.headers.get("Range", ""))
        return (int(match[1]), int(match[2] or -1)) if match else None


@dataclass
class Repo:
    """A repository and its one commit."""

    name: str
    files: dict[str, bytes]
    commit: str
    tags: list[str]
    gated: bool | str = False
    private: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    """Put on top of what the API says."""

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()

    def in_store(self, name: str) -> bool:
        """Say whether it is kept with Git LFS, as every GGUF file is."""
        return name.lower().endswith((".gguf", ".safetensors", ".bin"))


class Hub:
    """The hub (`url`) and the host of its large files (`store_url`)."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        """tls: answer over HTTPS, with the certificate in it."""
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
        """Go away: connections are refused from now on."""
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
        """Add a repository, or the next commit of one."""
        held = {name: one if isinstance(one, bytes) else one.read_bytes() for name, one in files.items()}
        digest = hashlib.sha1(name.encode())
        for file, data in held.items():
            digest.update(file.encode() + hashlib.sha256(data).digest())
        repo = Repo(name, held, digest.hexdigest(), list(tags), gated, private, info)
        self.repos[name] = repo
        return repo

    def fail(self, place: Place, fault: Fault) -> None:
        """Spoil answers of `place` from now on."""
        with self._lock:
            self._faults.append((place, fault))
            self.mended.clear()

    def mend(self) -> None:
        """Take all faults away; what is being sent slowly comes at once."""
        with self._lock:
            self._faults.clear()
            self.mended.set()

    def requests(self, place: Place) -> list[Seen]:
        """Return the requests that reached `place`."""
        return [one for one in self.seen if one.place == place]

    def note(self, place: Place | None, method: str, path: str, headers: Message) -> None:
        """Keep what came."""
        self.seen.append(Seen(place, method, path, headers))

    def fault(self, place: Place | None) -> Fault:
        """Return what shall go wrong with the next answer of `place`."""
        with self._lock:
            for where, fault in self._faults:
                if where == place and fault.after > 0:
                    fault.after -= 1
                elif where == place and fault.times:
                    fault.times -= 1
                    return fault
        return Fault()

    def find(self, path: str) -> tuple[Repo | None, list[str]]:
        """Return the repository of a path, and what follows it."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        return self.repos.get("/".join(parts[:2])), parts[2:]


def took(start: float) -> float:
    """Return the seconds since `start`, a time.monotonic()."""
    return time.monotonic() - start
