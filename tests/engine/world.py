"""Chats in use: submitted, cancelled, edited, retried, left and deleted, with restarts of the worker.

Every finished reply can be checked from its request alone. A `World` takes random steps and checks them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from edgechat.base.errors import PromptTooLong
from edgechat.engine.engine import EngineCore
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Dropped,
    Event,
    Failed,
    Finished,
    FinishReason,
    Message,
    Persisted,
    Priority,
    Sampling,
)

Judge = Callable[[ChatRequest, str, FinishReason], bool]
"""Returns True if a reply fits its request."""
MAX_TOKENS = 24


@dataclass
class Chat:
    """A conversation, as a front end knows it."""

    id: str
    messages: list[Message] = field(default_factory=list)
    running: ChatRequest | None = None
    text: str = ""
    dropped: int = 0


class World:
    """Some chats with one engine, which a restart replaces."""

    def __init__(
        self,
        make: Callable[[], EngineCore],
        judge: Judge,
        question: Callable[[random.Random], str],
        seed: int,
        check: Callable[[EngineCore], None],
    ) -> None:
        self.random = random.Random(seed)
        self.make, self.judge, self.question, self.check = make, judge, question, check
        self.engine = make()
        self.chats = [Chat(f"{number:08x}") for number in range(3)]
        self.told: list[str] = []
        """The events so far, for explaining a failure."""
        self.compared = self.shifted = self.cached = self.overflows = self.drafted = 0
        self._requests = 0
        self._leaving: list[str | None] = []

    def close(self) -> None:
        self.engine.close()

    def run(self, steps: int) -> None:
        """Take random steps, then let everything finish."""
        actions = (
            ["say"] * 6 + ["step"] * 8 + ["edit", "again", "cancel", "idle", "idle", "leave", "leave all"]
        )
        actions += ["forget", "restart", "crash", "background"]
        for _ in range(steps):
            action = self.random.choice(actions)
            getattr(self, f"_{action.replace(' ', '_')}")()
        self._idle()
        assert not self._leaving

    # Actions.

    def _say(self) -> None:
        chat = self._quiet()
        if chat is not None:
            chat.messages.append(Message("user", self.question(self.random)))
            self._submit(chat)

    def _edit(self) -> None:
        chat = self._quiet()
        asked = [at for at, one in enumerate(chat.messages) if one.role == "user"] if chat else []
        if chat is not None and asked:
            del chat.messages[self.random.choice(asked) :]
            chat.messages.append(Message("user", self.question(self.random)))
            self._submit(chat)

    def _again(self) -> None:
        chat = self._quiet()
        if chat is not None and chat.messages and chat.messages[-1].role == "assistant":
            chat.messages.pop()
            self._submit(chat)

    def _background(self) -> None:
        self._submit(Chat("", [Message("user", self.question(self.random))]), priority="background")

    def _cancel(self) -> None:
        chat = self.random.choice(self.chats)
        if chat.running is not None:
            self._take(self.engine.cancel(chat.running.id))
            assert chat.running is None

    def _step(self) -> None:
        for _ in range(self.random.choice((1, 3, 30))):
            self._take(self.engine.step())
            self.check(self.engine)

    def _idle(self) -> None:
        for _ in range(100_000):
            if self.engine.is_idle:
                return
            self._take(self.engine.step())
            self.check(self.engine)
        raise AssertionError("the engine does not come to an end")

    def _leave(self) -> None:
        self._leaving.append(self.random.choice(self.chats).id)
        self.engine.persist(self._leaving[-1])

    def _leave_all(self) -> None:
        self._leaving.append(None)
        self.engine.persist(None)

    def _forget(self) -> None:
        chat = self._quiet()
        if chat is not None:
            chat.messages.clear()
            self.engine.forget(chat.id)
            self.check(self.engine)

    def _restart(self) -> None:
        """Shut down as a front end does."""
        self._leave_all()
        self._idle()
        self._crash()

    def _crash(self) -> None:
        self.engine.close()
        self.engine = self.make()
        self._leaving.clear()
        for chat in list(self.chats):
            if chat.running is not None:
                self._end(chat)

    # Checks.

    def _quiet(self) -> Chat | None:
        quiet = [chat for chat in self.chats if chat.running is None]
        return self.random.choice(quiet) if quiet else None

    def _submit(self, chat: Chat, priority: Priority = "interactive") -> None:
        self._requests += 1
        request = ChatRequest(
            id=f"r{self._requests}",
            chat=chat.id or None,
            messages=tuple(chat.messages),
            sampling=Sampling(temperature=0),
            max_tokens=MAX_TOKENS,
            priority=priority,
        )
        self.told.append(f"{request.id}: {chat.id} {[(m.role, m.content[:12]) for m in chat.messages]}")
        chat.running, chat.text, chat.dropped = request, "", 0
        if not chat.id:
            self.chats.append(chat)
        try:
            self._take(self.engine.submit(request))
        except PromptTooLong:
            chat.messages.pop()
            chat.running = None
        self.check(self.engine)

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Persisted):
                self._leaving.remove(event.chat)
                continue
            chat = next((c for c in self.chats if c.running and c.running.id == event.request_id), None)
            if isinstance(event, Failed):
                raise event.error.error()
            if chat is None:
                continue
            if isinstance(event, Delta):
                chat.text += event.text
            elif isinstance(event, Dropped):
                assert event.turns > chat.dropped
                chat.dropped = event.turns
            elif isinstance(event, Finished):
                self._compare(chat, event)
                self._end(chat)

    def _compare(self, chat: Chat, event: Finished) -> None:
        usage = event.usage
        self.told.append(f"{event.request_id}: {event.reason} {usage} {chat.text!r}")
        assert usage.dropped_turns == chat.dropped
        assert 0 <= usage.shifted_tokens <= usage.cached_tokens <= usage.prompt_tokens
        self.cached += usage.cached_tokens
        self.overflows += usage.dropped_turns > 0
        self.drafted += event.speculation.drafted_tokens if event.speculation else 0
        if usage.shifted_tokens:  # shifting is approximate, and reported as such
            self.shifted += 1
            return
        assert self.judge(chat.running, chat.text, event.reason), "\n".join(self.told[-12:])
        self.compared += 1

    def _end(self, chat: Chat) -> None:
        chat.running = None
        if not chat.id:
            self.chats.remove(chat)
        elif chat.text:
            chat.messages.append(Message("assistant", chat.text))
        else:
            chat.messages.pop()
