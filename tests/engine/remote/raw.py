"""A server whose every byte is up to the test: what other programs answer, and what no honest one would."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from edgechat.engine.remote.engine import RemoteEngine, RunningHost
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import LoadPlan
from edgechat.settings import RemoteServer

KEY = "sk-the-secret-of-the-tests"
Write = Callable[[bytes], Awaitable[None]]
Answer = Callable[[Write], Awaitable[None]]


@dataclass
class Asked:
    """A request as received."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class RawServer:
    """Answers each path as told, and all others with 404."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has disconnected before its answer was complete."""
    url: str = ""

    def client(self) -> RemoteClient:
        return RemoteClient("desk", RemoteServer(url=self.url, key=KEY))

    def engine(self, model: str = "m", **changes: Any) -> RemoteEngine:
        remote = HostedModel(server="desk", id=model, kind="openai", url=self.url)
        plan = LoadPlan(model_path="", model_name=remote.name, context=1000, remote=remote)
        return RemoteEngine(plan, RunningHost(RemoteServer(url=self.url, key=KEY)), **changes)

    @property
    def body(self) -> Any:
        """The body of the latest request to the model."""
        return [one.body for one in self.asked if one.path.endswith("/chat/completions")][-1]

    def chat(self, *chunks: Any, end: bool = True) -> None:
        """Answer every chat with these chunks: objects, or raw lines."""
        lines = [
            chunk if isinstance(chunk, bytes) else b"data: " + json.dumps(chunk).encode() for chunk in chunks
        ]
        self.answers["/v1/chat/completions"] = streamed(*lines, *([b"data: [DONE]"] if end else []))

    def models(self, *entries: dict[str, Any]) -> None:
        self.answers["/v1/models"] = said({"object": "list", "data": list(entries)})

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            data = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = first.split()
            self.asked.append(Asked(method, path, headers, json.loads(data) if data else None))

            async def write(piece: bytes) -> None:
                writer.write(piece)
                await writer.drain()
                if reader.at_eof():
                    raise ConnectionResetError

            try:
                await self.answers.get(path, said({"detail": "Not Found"}, 404))(write)
            except ConnectionError:
                self.left.set()
            writer.close()


def said(body: Any, status: int = 200, **headers: str) -> Answer:
    """Return an answer sent as a whole."""

    async def answer(write: Write) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    return answer


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def streamed(*lines: bytes) -> Answer:
    """Return an answer sent in lines, which ends with the connection."""

    async def answer(write: Write) -> None:
        await write(STREAM)
        for line in lines:
            await write(line + b"\n\n")

    return answer


def _line(chunk: Any) -> bytes:
    return chunk if isinstance(chunk, bytes) else b"data: " + json.dumps(chunk).encode()


def text(content: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of text."""
    return {"choices": [{"delta": {"content": content, **more}, "finish_reason": finish}]}


@asynccontextmanager
async def raw_server() -> AsyncIterator[RawServer]:
    """Serve on loopback; initially with one model, m, that says 'Hi'."""
    raw = RawServer()
    raw.models({"id": "m", "owned_by": "vllm", "max_model_len": 4096})
    raw.chat(text("Hi"), text("", "stop"))
    server = await asyncio.start_server(raw.handle, "127.0.0.1", 0, limit=2**26)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()
