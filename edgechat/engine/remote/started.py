"""Started host: a third-party server program that edgechat runs on a free loopback port."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from edgechat.base.errors import EdgechatError, LoadFailed
from edgechat.base.process.program import Program, ProgramStart
from edgechat.base.process.spawn import free_port, needed_environment
from edgechat.base.text import one_line
from edgechat.engine.worker.connection import open_log, tail
from edgechat.models.remote.client import RemoteClient
from edgechat.models.remote.measured import EngineStart, engine_starts, note_start
from edgechat.models.remote.model import KINDS
from edgechat.planner.plan import API_KEY, PORT, ProgramPlan
from edgechat.settings import RemoteServer

START_SECONDS, SILENT_SECONDS = 3600.0, 600.0
"""Maximum seconds for a program to start, and between log lines. It may have to download and compile."""
_POLL_SECONDS = 0.25
_ASK_SECONDS = 5.0
_SHOWN_LINES = 8
_MOST_TAIL = 16384


class StartedHost:
    """A `RemoteHost` that starts its server on demand, and ends it on `close` or when edgechat ends."""

    def __init__(
        self,
        plan: ProgramPlan,
        name: str,
        *,
        start_seconds: float = START_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """name: the model's name, under which the startup time is recorded."""
        self.log_path: Path | None = None
        self._plan = plan
        self._start_seconds, self._silent_seconds = start_seconds, silent_seconds
        self._name = name
        self._program: Program | None = None
        self._server: RemoteServer | None = None

    async def open(self, on_progress: Callable[[float], None]) -> RemoteServer:
        """Return the server once it lists its models, calling `on_progress` while waiting.

        Starts the program unless it is running. Raises LoadFailed with the end of the program's log.
        """
        if self._server is not None and await self._still_answers(self._server):
            return self._server
        await self.close()
        server = RemoteServer(
            url=f"http://127.0.0.1:{free_port()}",
            key=secrets.token_urlsafe(24),
            kind=self._plan.engine,
        )
        try:
            await self._start(server)
            await self._wait(server, on_progress)
        except BaseException:
            await asyncio.shield(self.close())
            raise
        self._server = server
        return server

    async def _still_answers(self, server: RemoteServer) -> bool:
        if self._program is None or self._program.exit_code is not None:
            return False
        client = RemoteClient(self._plan.engine, server)
        try:
            return await _is_ready(client)
        finally:
            await client.close()

    async def close(self) -> None:
        """End the program."""
        program, self._program, self._server = self._program, None, None
        if program is not None:
            await program.close()

    def log_tail(self, n_bytes: int) -> str:
        """Return the end of the program's log as printable text, with the API key masked."""
        text = tail(self.log_path, n_bytes)
        key = self._server.key if self._server is not None else None
        return text.replace(key, "…") if key else text

    async def _start(self, server: RemoteServer) -> None:
        plan, key = self._plan, server.key or ""
        words = {PORT: server.url.rpartition(":")[2], API_KEY: key}
        environment = needed_environment(*plan.inherited) | plan.environment
        if plan.key_variable:
            environment[plan.key_variable] = key
        start = ProgramStart(tuple(words.get(word, word) for word in plan.command), environment)
        self.log_path, log = open_log()
        try:
            self._program = await Program.start(start, log)
        except OSError as error:
            raise LoadFailed(f"{self._label} cannot be started: {error.strerror}.") from error
        finally:
            os.close(log)

    async def _wait(self, server: RemoteServer, on_progress: Callable[[float], None]) -> None:
        assert self._program is not None
        began = heard = time.monotonic()
        usual = engine_starts().get(self._name, EngineStart()).seconds
        size, client = -1, RemoteClient(self._plan.engine, server)
        try:
            while True:
                on_progress(min(0.99, (time.monotonic() - began) / usual) if usual else 0.0)
                if (code := self._program.exit_code) is not None:
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    raise self._failed(server, f"ended before it was ready ({how})")
                if await _is_ready(client):
                    seconds = round(time.monotonic() - began, 1)
                    await asyncio.to_thread(note_start, self._name, EngineStart(seconds))
                    return
                now = time.monotonic()
                if (written := self._log_size()) != size:
                    size, heard = written, now
                if now - heard > self._silent_seconds:
                    raise self._failed(server, f"is not ready and has logged nothing for {now - heard:.0f} s")
                if now - began > self._start_seconds:
                    raise self._failed(server, f"was not ready after {now - began:.0f} s")
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await client.close()

    def _log_size(self) -> int:
        try:
            return os.stat(self.log_path).st_size if self.log_path is not None else 0
        except OSError:
            return 0

    def _failed(self, server: RemoteServer, what: str) -> LoadFailed:
        note_start(self._name, EngineStart(failure=what, log=str(self.log_path)))
        text = self.log_tail(_MOST_TAIL).replace(server.key or "\0", "…")
        lines = [one_line(line, 200) for line in text.splitlines() if line.strip()][-_SHOWN_LINES:]
        end = "".join(f"\n  {line}" for line in lines) or " (empty)"
        return LoadFailed(f"{self._label} {what}.", hint=f"The end of its log ({self.log_path}):{end}")

    @property
    def _label(self) -> str:
        return KINDS[self._plan.engine]


async def _is_ready(client: RemoteClient) -> bool:
    is_transformers = client.server.kind == "transformers"  # its list of models requires a Hugging Face cache
    try:
        listed = await client.get("/health" if is_transformers else "/v1/models", seconds=_ASK_SECONDS)
    except EdgechatError:  # it is not listening yet, or is still loading
        return False
    if is_transformers:
        return True
    return isinstance(listed, dict) and isinstance(listed.get("data"), list)
