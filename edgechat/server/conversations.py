"""Which conversation a request belongs to: programs send all of it each time, and do not name it.

By its id the engine saves the KV state to disk when the model is unloaded, so that an agent need not wait
for its long prompt again. Requests that nothing will follow have none: their states would only be written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import takewhile

import msgspec

from edgechat.engine.types import ChatRequest, Message


def with_conversation(request: ChatRequest, model: str) -> ChatRequest:
    """Return a request with the id of its conversation, a hash, if it has one.

    Requests with tools: all that have the same system prompt and tools are one, of which the last is saved.
    Others: from the second question on, those with the same system prompt and first question. Those with
    other LoRA adapters are others.
    """
    if request.text is not None or request.chat is not None:
        return request
    system = list(takewhile(lambda message: message.role == "system", request.messages))
    first: Iterable[Message]
    if request.tools:
        first = system
    elif any(message.role == "assistant" for message in request.messages[:-1]):
        first = request.messages[: len(system) + 1]
    else:
        return request
    key = (model, list(first), request.tools, *([request.adapters] if request.adapters else ()))
    digest = hashlib.blake2b(msgspec.msgpack.encode(key), digest_size=32)
    return msgspec.structs.replace(request, chat=digest.hexdigest())
