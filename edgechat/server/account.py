"""What became of each request: for the metrics, and for who wants to see a line of each."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgechat.server.exchange import MODEL
from edgechat.server.models import Models
from edgechat.server.refusal import CUT
from edgechat.text import one_line

_CLOSED = 499
"""The client was gone before there was a status; as nginx calls it."""


class Account:
    """Counts requests, the refused ones too. Nothing of what they say is kept or told."""

    def __init__(self, app: ASGIApp, models: Models, tell: Callable[[str], None] | None = None) -> None:
        self._app = app
        self._models = models
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        began = time.monotonic()
        status, whole = _CLOSED, False

        async def noting(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                whole = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            model = scope.get(MODEL, "")
            self._models.metrics.request(_endpoint(scope["path"]), status, model or None)
            if self._tell is not None:
                seconds = time.monotonic() - began
                cut = scope.get(CUT) if whole else "client_gone"
                asked = f"{scope['method']} {one_line(scope['path'], 80)}"
                words = (time.strftime("%H:%M:%S"), asked, str(status), f"{seconds:.2f} s", model, cut)
                self._tell(" ".join(word for word in words if word))


def _endpoint(path: str) -> str:
    """Return the path that a request is counted by; those of single models count together."""
    return "/v1/models" if path.startswith("/v1/models/") else path
