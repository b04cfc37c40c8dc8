"""Errors as Ollama's API writes them."""

from __future__ import annotations

import msgspec

from edgechat.server.http.refusal import Refusal


class OllamaError(msgspec.Struct, frozen=True):
    """The body of an error response, or the last line of a stream that fails."""

    error: str


def error_body(refusal: Refusal) -> bytes:
    """Return the JSON of a refusal."""
    return msgspec.json.encode(OllamaError(refusal.message))
