"""How an answer ended, in OpenAI's words."""

from __future__ import annotations

from typing import Literal

from edgechat.engine.types import Finished
from edgechat.server.http.refusal import Refusal

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]

_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "context": "length",
    "tools": "tool_calls",
}


def reason_of(end: Finished) -> FinishReason:
    """Return why an answer ended. Raises Refusal for one that the server has cut short."""
    if end.reason == "cancelled":
        raise Refusal("The server was stopped during the answer.", status=503, code="stopped")
    return _REASONS[end.reason]
