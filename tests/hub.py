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
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

Place = Literal["api", "resolve", "store"]
"""Who answers: the API, the hub's addresses of files, or the host that keeps large files."""

TOKEN = "hf_the_token_of_the_tests"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PIECE = 1 << 16


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
    piece: int = _PIECE
    """Bytes of a piece."""
    drip_headers: float = 0.0
    """Seconds before each line of the headers."""
    cut_after: int | None = None
    """Bytes of the body after which the connection is closed."""
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
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
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

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.seen: list[Seen] = []
        self.stopped = threading.Event()
        self._faults: list[tuple[Place, Fault]] = []
        self._lock = threading.Lock()
        self._servers = [_Server(self, store=False), _Server(self, store=True)]
        self.url, self.store_url = (
            f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers
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

    def mend(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._faults.clear()

    def requests(self, place: Place) -> list[Seen]:
        """Return the requests that reached `place`."""
        return [one for one in self.seen if one.place == place]

    def fault(self, place: Place) -> Fault:
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: Hub, *, store: bool) -> None:
        self.hub = hub
        self.store = store
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients hang up on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server.hub, urlsplit(self.path).path
        place: Place | None = "store" if self.server.store else None
        if place is None and path.startswith("/api/models/"):
            place = "api"
        elif place is None and "/resolve/" in path:
            place = "resolve"
        hub.seen.append(Seen(place, self.command, self.path, self.headers))
        fault = hub.fault(place) if place else Fault()
        hub.stopped.wait(fault.wait)
        if fault.drop:
            self.close_connection = True
            return
        if place == "store":
            self._store(path, fault)
        elif place == "api":
            self._api(path.removeprefix("/api/models/"), fault)
        elif place == "resolve":
            self._resolve(path, fault)
        else:
            self._refuse(404, None, fault)

    def _allowed(self, repo: Repo | None, fault: Fault, *, files: bool) -> bool:
        """Refuse what the hub refuses; without a token it does not tell private from missing."""
        token = self.headers.get("Authorization")
        if token is not None and token != f"Bearer {TOKEN}":
            self._refuse(401, None, fault, "Invalid credentials in Authorization header")
        elif repo is None or (repo.private and token is None):
            self._refuse(401 if token is None else 404, "RepoNotFound", fault, "Repository not found")
        elif files and repo.gated and token is None:
            self._refuse(401, "GatedRepo", fault, f"Access to model {repo.name} is restricted.")
        else:
            return True
        return False

    def _api(self, path: str, fault: Fault) -> None:
        repo, rest = self.server.hub.find(path)
        if not self._allowed(repo, fault, files=False):
            return
        assert repo is not None
        if len(rest) > 1 and rest[1] not in ("main", repo.commit):
            self._refuse(404, "RevisionNotFound", fault, f"Invalid rev id: {rest[1]}")
            return
        answer: Any = [self._entry(repo, name) for name in repo.files]
        if rest[:1] != ["tree"]:
            answer = {
                "_id": "0" * 24, "id": repo.name, "modelId": repo.name, "author": repo.name.split("/")[0],
                "sha": repo.commit, "private": repo.private, "gated": repo.gated, "disabled": False,
                "lastModified": "2026-01-01T00:00:00.000Z", "tags": repo.tags, "downloads": 1, "likes": 1,
                "siblings": [self._sibling(repo, name) for name in repo.files], "usedStorage": 1,
            } | repo.info  # fmt: skip
        self._send(200, {"Content-Type": "application/json"}, json.dumps(answer).encode(), fault)

    def _sibling(self, repo: Repo, name: str) -> dict[str, Any]:
        if "blobs" not in self.path:
            return {"rfilename": name}
        size = len(repo.files[name])
        found: dict[str, Any] = {"rfilename": name, "size": size, "blobId": _blob_id(repo.files[name])}
        if repo.in_store(name):
            found["lfs"] = {"sha256": repo.sha256(name), "size": size, "pointerSize": 135}
        return found

    def _entry(self, repo: Repo, name: str) -> dict[str, Any]:
        size = len(repo.files[name])
        found: dict[str, Any] = {
            "type": "file",
            "path": name,
            "size": size,
            "oid": _blob_id(repo.files[name]),
        }
        if repo.in_store(name):
            found["lfs"] = {"oid": repo.sha256(name), "size": size, "pointerSize": 135}
        return found

    def _resolve(self, path: str, fault: Fault) -> None:
        repo, rest = self.server.hub.find(path)
        if not self._allowed(repo, fault, files=True):
            return
        assert repo is not None
        revision, name = rest[1], "/".join(rest[2:])
        if revision not in ("main", repo.commit):
            self._refuse(404, "RevisionNotFound", fault, f"Invalid rev id: {revision}")
        elif name not in repo.files:
            self._refuse(404, "EntryNotFound", fault, "Entry not found")
        elif not repo.in_store(name):
            headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{_blob_id(repo.files[name])}"'}
            self._send_file(repo.files[name], headers, fault)
        else:
            digest = repo.sha256(name)
            headers = {
                "X-Repo-Commit": repo.commit,
                "X-Linked-Size": str(len(repo.files[name])),
                "X-Linked-Etag": f'"{digest}"',
                "Location": f"{self.server.hub.store_url}/{repo.name}/{digest}?Signature=abc",
            }
            self._send(302, headers, b"Found. Redirecting", fault)

    def _store(self, path: str, fault: Fault) -> None:
        repo, rest = self.server.hub.find(path)
        for name, data in repo.files.items() if repo else ():
            if repo and repo.sha256(name) == rest[-1]:
                self._send_file(data, {"ETag": f'"{rest[-1]}"'}, fault)
                return
        self._refuse(403, None, fault)

    def _send_file(self, data: bytes, headers: dict[str, str], fault: Fault) -> None:
        headers |= {"Accept-Ranges": "bytes", "Content-Type": "binary/octet-stream"}
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        etag = fault.headers.get("ETag", headers["ETag"])
        if match is None or fault.ignore_range or self.headers.get("If-Range", etag) != etag:
            self._send(200, headers, data, fault)
            return
        first, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
        if first > last:
            self._send(416, {"Content-Range": f"bytes */{len(data)}"}, b"", fault)
            return
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self._send(206, headers, data[first : last + 1], fault)

    def _refuse(self, status: int, code: str | None, fault: Fault, message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        headers |= {"X-Error-Message": message} if message else {}
        self._send(status, headers, json.dumps({"error": message}).encode(), fault)

    def _send(self, status: int, headers: dict[str, str], body: bytes, fault: Fault) -> None:
        body = body if fault.body is None else fault.body
        headers = {"Content-Length": str(len(body)), **headers, **fault.headers}
        if fault.chunked:
            headers |= {"Content-Length": "", "Transfer-Encoding": "chunked"}
        self.send_response(fault.status or status)
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
            if fault.drip_headers:
                self.flush_headers()
                self.server.hub.stopped.wait(fault.drip_headers)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(body + fault.more, fault)

    def _send_body(self, body: bytes, fault: Fault) -> None:
        whole, body = body, body[: fault.cut_after]
        view = memoryview(body)
        for at in range(0, len(body), fault.piece):
            if fault.pause and self.server.hub.stopped.wait(fault.pause):
                break
            piece = view[at : at + fault.piece]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if fault.chunked else piece)
        if len(body) < len(whole) or fault.more:
            self.close_connection = True
        elif fault.chunked:
            self.wfile.write(b"0\r\n\r\n")


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def took(start: float) -> float:
    """Return the seconds since `start`, a time.monotonic()."""
    return time.monotonic() - start
