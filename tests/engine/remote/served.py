"""A scripted model behind edgechat's own server on loopback, with the real pool, worker and socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from edgechat.engine.remote.engine import RemoteEngine, RunningHost
from edgechat.models.remote.model import HostedModel
from edgechat.planner.plan import LoadPlan
from edgechat.server.pool.pool import Pool
from edgechat.settings import RemoteServer
from tests.server.fakes import KEY, serving
from tests.server.pool.machine import Machine, worker


@dataclass
class ServedModel:
    """The model's address, and what happens before it is found."""

    url: str = ""
    key: str = KEY
    delay: float = 0.0
    """Seconds until the model list arrives."""
    error: str = ""
    """The error to answer with instead."""
    model: str = "one"

    @property
    def server(self) -> RemoteServer:
        return RemoteServer(url=f"{self.url}/v1", key=self.key)

    def engine(self, **changes: Any) -> RemoteEngine:
        """Return an engine for the model."""
        remote = HostedModel(server="desk", id=self.model, kind="openai", url=self.url)
        plan = LoadPlan(model_path="", model_name=remote.name, context=1024, remote=remote)
        return RemoteEngine(plan, RunningHost(self.server), **changes)

    def around(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] == "/v1/models":
                await asyncio.sleep(self.delay)
                if self.error:
                    body = json.dumps({"error": {"message": self.error}}).encode()
                    await send({"type": "http.response.start", "status": 500, "headers": []})
                    await send({"type": "http.response.body", "body": body})
                    return
            await app(scope, receive, send)

        return answer


@asynccontextmanager
async def served_model(folder: Path, **script: Any) -> AsyncIterator[ServedModel]:
    """Serve a model that follows a script. Tests must use the fixture `scripted_workers`."""
    folder.mkdir(exist_ok=True)
    machine, served = Machine(folder), ServedModel()
    machine.default = machine.add("one", **script)
    pool = Pool(partial(worker, 600.0), machine.prepare, machine)
    try:
        async with serving(pool, around=served.around) as url:  # type: ignore[arg-type]
            served.url = url
            yield served
    finally:
        await pool.close()
