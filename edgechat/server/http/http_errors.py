"""From errors to HTTP's: the status, and whether it is worth trying again."""

from __future__ import annotations

import logging
import re

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
from edgechat.server.http.refusal import Refusal

_LOG = logging.getLogger(__name__)
_OURS: tuple[tuple[type[EdgechatError], int, str, int | None], ...] = (
    # The class, the status, the code, and seconds after which it may work.
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
    # Where the error's own hint is for people at a terminal, or names a path of this machine.
    SwitchUnknown: "Omit think and reasoning_effort.",
    EngineCrashed: "The next request starts it again.",
    StoreError: "Requests without previous_response_id and item_reference do not need it.",
    ModelFileError: "For details, run `edgechat plan` with its name on the server's machine.",
}
_FOLDERS = re.compile(r"(?<!\S)(?:[A-Za-z]:)?[/\\](?:[^/\\]*[/\\])*")
"""Of a path from the root on; clients are told the file's name alone."""


def refusal_of(error: Exception) -> Refusal:
    """Return how a client is told of an error; what nobody foresaw is logged, and told without details."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, EdgechatError):
        # Its text may quote what somebody has asked: only --debug shows that, see `edgechat.base.logs`.
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
