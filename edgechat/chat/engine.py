"""What a conversation wants of an engine, and in which manner it wants a reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import msgspec

from edgechat.engine.types import ChatRequest, ModelInfo, Overflow, RequestEvent, Sampling


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a reply is to be written; the fields of a ChatRequest."""

    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    think: bool | None = None
    overflow: Overflow = "window"


class Engine(Protocol):
    """What a conversation needs of an engine; `edgechat.engine.worker.supervisor.EngineSupervisor` is one."""

    model: ModelInfo | None

    def stream(
        self, request: ChatRequest, on_progress: Callable[[float], None] | None = None
    ) -> AsyncGenerator[RequestEvent, None]:
        """Answer a request; the events end after a Finished, or with an EdgechatError.

        Loads the model where it is not loaded, telling `on_progress` (0 to 1).
        """
        ...

    async def cancel(self, request_id: str) -> None:
        """Stop a request; its stream then ends with Finished(reason='cancelled')."""
        ...

    def forget(self, chat: str) -> None:
        """Keep nothing of a chat, which is deleted."""
        ...
