"""What became of each request: for the metrics, and a line of each in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgechat.base.text import one_line
from edgechat.server.http.exchange import MODEL, TOKENS
from edgechat.server.http.refusal import CUT
from edgechat.server.pool.models import ModelPool

_LOG = logging.getLogger(__name__)
_CLOSED = 499
"""The client was gone before there was a status; as nginx calls it."""
_OTHER = "other"
"""What paths that there are not are counted by: what clients write is no label."""


class AccessLog:
    """Counts requests, the refused ones too. Nothing of what they say is kept or told."""

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
            self._models.metrics.request(self._endpoint(scope["path"]), status, model or None)
            seconds = time.monotonic() - began
            cut = scope.get(CUT) if whole else "client_gone"
            asked = f"{scope['method']} {one_line(scope['path'], 80)}"
            caller = scope["client"][0] if scope["client"] else ""
            words = (caller, asked, str(status), f"{seconds:.2f} s", model, _tokens(scope), cut)
            _LOG.info("%s", " ".join(word for word in words if word))

    def _endpoint(self, path: str) -> str:
        """Return what a request is counted by."""
        if path in self._paths:
            return path
        return next((one.removesuffix("/") for one in self._folders if path.startswith(one)), _OTHER)


def _tokens(scope: Scope) -> str:
    read, written = scope.get(TOKENS, (0, 0))
    return f"{read}+{written} tokens" if read or written else ""
