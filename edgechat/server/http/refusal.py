"""What a request is refused with: a status, words, and OpenAI's way of writing them."""

from __future__ import annotations

from typing import Final

import msgspec

_TYPES = {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error"}
ERROR_BODY: Final = "edgechat.error_body"
"""In the scope: how errors are written, as a function of a Refusal; by default as OpenAI's API does."""
BROKEN_OFF: Final = "edgechat.cut"
"""In the scope: the code of what has broken off an answer after its status was sent."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong; `param` is the field that it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: ErrorDetail


class Refusal(Exception):
    """A request that is refused, and why."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> bytes:
        """Return the JSON of it, as OpenAI's API writes errors."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return msgspec.json.encode(ErrorBody(ErrorDetail(self.message, kind, self.param, self.code)))
