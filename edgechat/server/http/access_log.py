"""Counts every request in the metrics, and writes a line for each to the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgechat.base.text import one_line
from edgechat.server.http.exchange import MODEL, TOKENS
from edgechat.server.http.refusal import BROKEN_OFF
from edgechat.server.pool.models import ModelPool

_LOG = logging.getLogger(__name__)
_CLOSED = 499
"""The client was gone before there was a status; as nginx calls it."""
_OTHER = "other"
"""The label of unknown paths: what clients write never becomes a label."""


class AccessLog:
    """Counts requests, including refused ones. Their content is never logged."""

    def __init__(self, app: ASGIApp, models: ModelPool, paths: Sequence[str]) -> None:
        """`paths`: those of the app; what goes on with a parameter counts as what is before that."""
        self._app = app
        self._models = models
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._folders = tuple(path.partition("{")[0] for path in paths if "{" in path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        began = time.monotonic()
        status, whole = _CLOSED, False

        async def observe(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            model = scope.get(MODEL, "")
            self._models.metrics.request(self._endpoint(scope["path"]), status, model or None)
            seconds = time.monotonic() - began
            cut = scope.get(BROKEN_OFF) if whole else "client_gone"
            request = f"{scope['method']} {one_line(scope['path'], 80)}"
            caller = scope["client"][0] if scope["client"] else ""
            fields = (caller, request, str(status), f"{seconds:.2f} s", model, _tokens(scope), cut)
            _LOG.info("%s", " ".join(field for field in fields if field))

    def _endpoint(self, path: str) -> str:
        """Return the label by which a request is counted."""
        if path in self._paths:
            return path
        return next((folder.removesuffix("/") for folder in self._folders if path.startswith(folder)), _OTHER)


def _tokens(scope: Scope) -> str:
    prompt, completion = scope.get(TOKENS, (0, 0))
    return f"{prompt}+{completion} tokens" if prompt or completion else ""
