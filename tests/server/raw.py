"""HTTP byte by byte, for what no client library would send."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from tests.server.fakes import KEY


class Raw:
    """A connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader, self.writer, self.host = reader, writer, host

    @classmethod
    async def to(cls, url: str) -> Raw:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port, limit=2**26), parts.netloc)

    async def ask(
        self,
        method: str = "GET",
        path: str = "/v1/models",
        *,
        body: bytes | None = None,
        key: str | None = KEY,
        **headers: str | None,
    ) -> None:
        """Send a request. Headers that are None are left out; underscores stand for hyphens."""
        sent: dict[str, str | None] = {"Host": self.host}
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        if body is not None:
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items() if value)]
        self.writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Return the status and headers of an answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """Return the status, headers and JSON of an answer with a known length."""
        status, headers = await self.head()
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        is_json = headers.get("content-type") == "application/json"
        return status, headers, json.loads(body) if is_json else body

    async def is_closed(self) -> bool:
        """Return True if the other side closes the connection without sending anything more."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.writer.close()


async def ask(url: str, *words: Any, **more: Any) -> tuple[int, dict[str, str], Any]:
    """Send a request on a new connection."""
    raw = await Raw.to(url)
    try:
        await raw.ask(*words, **more)
        return await raw.answer()
    finally:
        raw.close()
