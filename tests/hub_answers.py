"""The test hub's HTTP answers, correct or faulty; see tests/hub.py."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.hub import Fault, Hub, Place, Repo

TOKEN = "hf_the_token_of_the_tests"
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: Hub, *, store: bool, tls: ssl.SSLContext | None = None) -> None:
        self.hub = hub
        self.store = store
        self._tls = tls
        super().__init__(("127.0.0.1", 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in the request's own thread, where a client that stalls does no harm."""
        if self._tls is not None:
            request = self._tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients disconnect on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

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
        hub.note(place, self.command, self.path, self.headers)
        fault = hub.fault(place)
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
        """Refuse what the real hub refuses. Without a token, it does not distinguish private from missing."""
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
        match = RANGE.fullmatch(self.headers.get("Range", ""))
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
            hub = self.server.hub
            if fault.pause and not hub.mended.is_set() and hub.stopped.wait(fault.pause):
                break
            piece = view[at : at + fault.piece]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if fault.chunked else piece)
        if fault.reset:
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        elif len(body) < len(whole) or fault.more:
            self.close_connection = True
        elif fault.chunked:
            self.wfile.write(b"0\r\n\r\n")


def _blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
