"""Answers that are sent while they are written, as server-sent events."""

from __future__ import annotations

import asyncio
from typing import Protocol

from edgechat.engine.types import ChatRequest, Dropped, Prefill, RequestEvent
from edgechat.server.choices import Choices
from edgechat.server.exchange import Exchange
from edgechat.server.faults import refusal_of
from edgechat.server.models import Models, Served

KEEP_ALIVE = 10.0
"""Seconds of silence after which a line is sent that says nothing, so that nobody takes us for dead."""
_WAITING = b": waiting\n\n"
_DONE = b"data: [DONE]\n\n"


class Answers(Protocol):
    """The answers to one request, in some protocol's words."""

    n_choices: int
    model: str

    def request(self, served: Served, choice: int) -> ChatRequest:
        """Return what the engine is asked for one of them."""
        ...

    def begin(self) -> list[bytes]:
        """Return the chunks that a stream begins with."""
        ...

    def chunks(self, choice: int, event: RequestEvent) -> list[bytes]:
        """Return what a stream tells of an event. Raises Refusal for an answer that was cut short."""
        ...

    def end(self) -> list[bytes]:
        """Return the chunks that a stream ends with."""
        ...

    def take(self, choice: int, event: RequestEvent) -> None:
        """Note an event of an answer that is sent as a whole."""
        ...

    def whole(self) -> bytes:
        """Return the answers that were taken."""
        ...


async def generate(exchange: Exchange, models: Models, name: str, answers: Answers, *, stream: bool) -> None:
    """Compute the answers and send them. Raises EdgechatError and Refusal where nothing is sent yet."""
    async with Choices(models, name, answers.request, answers.n_choices) as choices:
        try:
            if stream:
                await _stream(exchange, choices, answers)
            else:
                await _whole(exchange, choices, answers)
        finally:
            exchange.answered_by(choices.model)


async def _whole(exchange: Exchange, choices: Choices, answers: Answers) -> None:
    while not choices.ended:
        for choice, event in await choices.more():
            answers.take(choice, event)
    answers.model = choices.model
    await exchange.answer(200, answers.whole())


async def _stream(exchange: Exchange, choices: Choices, answers: Answers) -> None:
    # Before the first word it can still turn out that there is no answer, which is a status of its own.
    first = await _first_words(choices)
    await exchange.begin(
        200, ("cache-control", "no-store"), ("x-accel-buffering", "no"), kind="text/event-stream"
    )
    if not first:
        await exchange.write(_WAITING, more=True)
    try:
        await _events(exchange, choices, answers, first)
    except Exception as error:  # the status has been sent: what went wrong is an event
        await exchange.write(_event(refusal_of(error).body()), more=False)


async def _first_words(choices: Choices) -> list[tuple[int, RequestEvent]]:
    """Return the events up to the first that is told; none where that takes long."""
    clock = asyncio.get_running_loop().time
    end = clock() + KEEP_ALIVE
    while (left := end - clock()) > 0:
        events = await choices.more(left)
        told = [one for one in events if not isinstance(one[1], Prefill | Dropped)]
        if told:
            return told
    return []


async def _events(
    exchange: Exchange, choices: Choices, answers: Answers, first: list[tuple[int, RequestEvent]]
) -> None:
    clock = asyncio.get_running_loop().time
    told, events, begun = clock(), first, False
    while True:
        if not begun and choices.model:
            begun = True
            answers.model = choices.model
            await exchange.write(b"".join(map(_event, answers.begin())), more=True)
        # What has come meanwhile goes out together.
        data = b"".join(_event(one) for choice, event in events for one in answers.chunks(choice, event))
        if choices.ended:
            await exchange.write(data + b"".join(map(_event, answers.end())) + _DONE, more=False)
            return
        if not data and clock() - told >= KEEP_ALIVE:
            data = _WAITING
        if data:
            await exchange.write(data, more=True)
            told = clock()
        events = await choices.more(KEEP_ALIVE)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
