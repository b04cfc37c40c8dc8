"""Refusals: why requests fail. They are derived from errors, and encoded in each protocol's format."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from edgechat.base.errors import (
    BadRequest,
    DoesNotFit,
    Draining,
    EdgechatError,
    EngineCrashed,
    EngineError,
    ImageNotStored,
    LoadFailed,
    ModelFileError,
    ModelNotFound,
    PromptTooLong,
    QueueFull,
    RequestRefused,
    SchemaError,
    SoundNotStored,
    StoreError,
    SwitchUnknown,
    TemplateError,
    WrongKind,
)

BROKEN_OFF: Final = "edgechat.cut"
"""Scope key: the code of the refusal that ended an answer after its status had been sent."""
_TYPES = {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """What went wrong; `param` is the field that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: ErrorDetail


class MessagesErrorCode(msgspec.Struct, frozen=True):
    """A machine-readable reason. After `thread_unsupported_request`, clients continue without threads."""

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


class OllamaError(msgspec.Struct, frozen=True):
    """The body of an error response, or the last line of a failed stream."""

    error: str


class Refusal(Exception):
    """A refused request: an HTTP status, a message, and details for client programs."""

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


def openai_error(refusal: Refusal) -> bytes:
    """Encode a refusal in the format of OpenAI's API."""
    kind = _TYPES.get(refusal.status, "server_error" if refusal.status >= 500 else "invalid_request_error")
    return msgspec.json.encode(ErrorBody(ErrorDetail(refusal.message, kind, refusal.param, refusal.code)))


def anthropic_error(refusal: Refusal) -> bytes:
    """Encode a refusal in the format of Anthropic's API."""
    kind = _ANTHROPIC_TYPES.get(
        refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error"
    )
    details = MessagesErrorCode(refusal.code) if refusal.code else UNSET
    return msgspec.json.encode(MessagesError(error=MessagesErrorDetail(kind, refusal.message, details)))


def ollama_error(refusal: Refusal) -> bytes:
    """Encode a refusal in the format of Ollama's API."""
    return msgspec.json.encode(OllamaError(refusal.message))


_DIALECTS: dict[str, tuple[type[msgspec.Struct], Callable[[Refusal], bytes]]] = {
    "/v1/messages": (MessagesError, anthropic_error),
    "/api/": (OllamaError, ollama_error),
    "": (ErrorBody, openai_error),
}
"""Error formats, keyed by the prefix of a canonical path."""


def error_format(path: str) -> tuple[type[msgspec.Struct], Callable[[Refusal], bytes]]:
    """Return the type of error bodies for a path, and the function that encodes them."""
    return next(found for prefix, found in _DIALECTS.items() if path.startswith(prefix))


_LOG = logging.getLogger(__name__)
_OURS: tuple[tuple[type[EdgechatError], int, str, int | None], ...] = (
    # Class, status, code, and seconds after which a retry may succeed.
    (ModelNotFound, 404, "model_not_found", None),
    (PromptTooLong, 400, "context_length_exceeded", None),
    (SchemaError, 400, "invalid_schema", None),
    (WrongKind, 400, "wrong_kind_of_model", None),
    (BadRequest, 400, "invalid_value", None),
    (SwitchUnknown, 400, "no_thinking_switch", None),
    (TemplateError, 400, "template_error", None),
    (RequestRefused, 422, "request_refused", None),
    (QueueFull, 429, "queue_full", 1),
    (Draining, 503, "stopping", 5),
    (EngineCrashed, 503, "engine_crashed", 1),
    (DoesNotFit, 503, "does_not_fit", None),
    (LoadFailed, 503, "load_failed", None),
    (StoreError, 503, "store_unavailable", 1),
    (ImageNotStored, 503, "store_unavailable", 1),
    (SoundNotStored, 503, "store_unavailable", 1),
    (ModelFileError, 500, "model_file_error", None),
)

_HINTS: dict[type[EdgechatError], str] = {
    # Replacements for hints that are meant for people at a terminal, or that contain paths on this machine.
    SwitchUnknown: "Omit think and reasoning_effort.",
    EngineCrashed: "The next request starts it again.",
    StoreError: "Requests without previous_response_id and item_reference do not need the response store.",
    ModelFileError: "For details, run `edgechat plan` with its name on the server's machine.",
}
_FOLDERS = re.compile(r"(?<!\S)(?:[A-Za-z]:)?[/\\](?:[^/\\]*[/\\])*")
"""Matches the folders in an absolute path. Clients only see the name of the file."""


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for an error. Unexpected errors are logged; clients do not see the details."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, EdgechatError):
        # The traceback may quote a request, so only --debug shows it: see `edgechat.base.logs`.
        _LOG.error("internal error in edgechat: %s", type(error).__name__, exc_info=error)
        told = "Internal error in edgechat; for details, start the server with --debug."
        return Refusal(told, status=500, code="fault")
    hint = next((ours for kind, ours in _HINTS.items() if isinstance(error, kind)), error.hint)
    said = error.message
    if isinstance(error, ModelFileError | EngineError | StoreError | ImageNotStored | SoundNotStored):
        said = _FOLDERS.sub("", said)
    message = f"{said} {hint}" if hint else said
    for kind, status, code, seconds in _OURS:
        if isinstance(error, kind):
            wait = getattr(error, "seconds", seconds)
            headers = [("retry-after", str(max(1, round(wait))))] if wait is not None else []
            headers += [("connection", "close")] if kind is Draining else []
            return Refusal(message, status=status, code=code, headers=tuple(headers))
    return Refusal(message, status=500, code="engine_error")
