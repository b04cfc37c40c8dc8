"""Errors as Anthropic's API writes them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.server.http.refusal import Refusal

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class MessagesErrorCode(msgspec.Struct, frozen=True):
    """What went wrong, for programs: clients know `thread_unsupported_request`, and go on without threads."""

    error_code: str


class MessagesErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong."""

    type: str
    message: str
    details: MessagesErrorCode | UnsetType = UNSET


class MessagesError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetail


def error_body(refusal: Refusal) -> bytes:
    """Return the JSON of a refusal."""
    kind = _TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    details = MessagesErrorCode(refusal.code) if refusal.code else UNSET
    return msgspec.json.encode(MessagesError(error=MessagesErrorDetail(kind, refusal.message, details)))
