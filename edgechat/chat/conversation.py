"""A conversation: what was said, what the model is sent, and the reply as it comes."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import date
from typing import Protocol

import msgspec

from edgechat.chat.draft import Draft
from edgechat.chat.records import Chat, Turn, TurnState
from edgechat.chat.store import Store
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    Message,
    ModelInfo,
    RequestEvent,
    Role,
    Sampling,
)
from edgechat.errors import EdgechatError, PromptTooLong, StoreError
from edgechat.text import one_line

_TITLE_LENGTH = 60


class Engine(Protocol):
    """What a conversation needs of an engine; `edgechat.engine.process.EngineProcess` is one."""

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


class Conversation:
    """One chat, of which every word is in the store before it is computed with.

    A turn of the user is saved by `ask`, a reply while it streams by `answer`; `send` is both. What ends a
    reply early (the reader, a crash, the program's end) is its state, and the text so far stays.
    """

    def __init__(self, store: Store, model: str) -> None:
        now = time.time()
        self.chat = Chat(
            id=uuid.uuid4().hex,
            title="",
            model=model,
            date=date.today().isoformat(),
            created_at=now,
            updated_at=now,
        )
        self.turns: list[Turn] = []
        """What was said, in order; of several tries at an answer the last."""
        self._store = store
        self._stored = False
        self._running: tuple[Engine, str] | None = None
        self._begun = False
        self._stopping = False
        self._has_words = False
        """Whether a reply to the last turn of the user is in the store that is worth keeping."""

    @classmethod
    async def load(cls, store: Store, chat_id: str) -> Conversation:
        """Return a stored conversation. Raises StoreError."""
        chat, turns = await store.load(chat_id)
        conversation = cls(store, chat.model)
        conversation.chat, conversation.turns, conversation._stored = chat, _last_branch(turns), True
        return conversation

    @property
    def answering(self) -> bool:
        """Whether a reply is being written."""
        return self._running is not None

    @property
    def can_retry(self) -> bool:
        """Whether the last turn of the user has no complete reply."""
        return bool(self.turns) and (self.turns[-1].role == "user" or self.turns[-1].state != "complete")

    async def use_model(self, model: str) -> None:
        """Note which model writes from now on. Raises StoreError."""
        if model != self.chat.model:
            self.chat = msgspec.structs.replace(self.chat, model=model)
            if self._stored:
                await self._store.set_model(self.chat.id, model)

    async def ask(self, text: str) -> Turn:
        """Save a turn of the user and return it. Raises StoreError, and then nothing has changed."""
        text = text.encode("utf-8", "replace").decode()
        turn = self._new_turn("user", text, "complete")
        if self._stored:
            await self._store.add_turn(turn)
        else:
            now, title = time.time(), one_line(text, _TITLE_LENGTH)
            chat = msgspec.structs.replace(self.chat, title=title, created_at=now, updated_at=now)
            await self._store.add_turn(turn, chat=chat)
            self.chat, self._stored = chat, True
        self.turns.append(turn)
        self._has_words = False
        return turn

    async def take_back_question(self) -> None:
        """Undo the last `ask`: question and replies leave `turns` and the store. Raises StoreError."""
        index = max(at for at, turn in enumerate(self.turns) if turn.role == "user")
        if index:
            await self._store.delete_turn(self.turns[index].id)
        else:
            await self._store.delete(self.chat.id)
            self._stored = False
        del self.turns[index:]

    async def answer(
        self,
        engine: Engine,
        *,
        sampling: Sampling | None = None,
        max_tokens: int | None = None,
        think: bool | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> AsyncGenerator[RequestEvent, None]:
        """Stream the reply to the last turn of the user; afterwards it is `turns[-1]`, whatever became of it.

        Raises the engine's errors after the text so far has been saved, and StoreError. PromptTooLong takes
        the question back, which no reply could follow, unless there are words of an earlier try. Close the
        generator (`contextlib.aclosing`) if it may not run to its end.
        """
        if self.answering or not self.turns or self.turns[-1].role != "user":
            raise RuntimeError("there is no turn of the user that waits for an answer")
        reply = self._new_turn("assistant", "", "streaming")
        request = ChatRequest(
            id=reply.id,
            messages=messages_of(self.turns),
            sampling=sampling or Sampling(),
            max_tokens=max_tokens,
            think=think,
            date=self.chat.date,
        )
        self._running, self._begun, self._stopping = (engine, request.id), False, False
        try:
            draft = Draft(self._store, reply)
            async with aclosing(self._write(draft, engine, request, on_progress)) as events:
                async for event in events:
                    yield event
        finally:
            self._running = None

    async def send(self, engine: Engine, text: str) -> AsyncGenerator[RequestEvent, None]:
        """Save a turn of the user, then stream the reply to it: `ask` and `answer`."""
        await self.ask(text)
        async with aclosing(self.answer(engine)) as events:
            async for event in events:
                yield event

    def take_back_reply(self) -> None:
        """Make room for another try: the last reply leaves `turns`, and stays in the store."""
        if self.can_retry and self.turns[-1].role == "assistant":
            reply = self.turns.pop()
            self._has_words = self._has_words or bool(reply.content or reply.thinking)

    async def stop(self) -> bool:
        """Ask for the reply to end here; what there is of it will be marked as stopped.

        True: the engine was told, and the stream ends with Finished. False: the engine has not begun (it
        loads the model, say), so whoever reads the stream should close it.
        """
        if self._running is None:
            return False
        self._stopping = True
        engine, request_id = self._running
        if self._begun:
            await engine.cancel(request_id)
        return self._begun

    async def _write(
        self,
        draft: Draft,
        engine: Engine,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None,
    ) -> AsyncGenerator[RequestEvent, None]:
        finished: Finished | None = None
        error: EdgechatError | None = None
        try:
            await draft.begin()
            # Left early, the stream is closed at once, and with it the worker's work.
            async with aclosing(engine.stream(request, on_progress)) as events:
                async for event in events:
                    self._begun = True
                    if isinstance(event, Delta):
                        draft.add(event)
                    elif isinstance(event, Finished):
                        finished = event
                    yield event
        except EdgechatError as exc:
            error = exc
            raise
        finally:
            if draft.begun:
                await self._end(draft, engine.model, finished, error)

    async def _end(
        self, draft: Draft, model: ModelInfo | None, finished: Finished | None, error: EdgechatError | None
    ) -> None:
        if isinstance(error, PromptTooLong) and not self._has_words:
            await draft.rest()
            with suppress(StoreError):
                await self.take_back_question()
                return
        try:
            await draft.end(self._end_state(draft.turn, finished, error), model, finished, error)
        finally:
            self.turns.append(draft.turn)

    def _end_state(self, turn: Turn, finished: Finished | None, error: EdgechatError | None) -> TurnState:
        if finished is not None and finished.reason != "cancelled":
            return "complete"
        if finished is not None or self._stopping:
            return "stopped"
        return "interrupted" if error is None or turn.content or turn.thinking else "failed"

    def _new_turn(self, role: Role, content: str, state: TurnState) -> Turn:
        return Turn(
            id=uuid.uuid4().hex,
            chat_id=self.chat.id,
            role=role,
            content=content,
            state=state,
            parent_id=self.turns[-1].id if self.turns else None,
            created_at=time.time(),
        )


def messages_of(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return what the model is sent of these turns.

    A reply without words is left out, and turns of the user that thereby meet become one: most templates
    want the roles to alternate.
    """
    messages: list[Message] = []
    for turn in turns:
        if turn.role == "assistant" and not turn.content:
            continue
        if turn.role == "user" and messages and messages[-1].role == "user":
            messages[-1] = Message("user", f"{messages[-1].content}\n\n{turn.content}")
        else:
            messages.append(Message(turn.role, turn.content, turn.thinking))
    return tuple(messages)


def _last_branch(turns: Sequence[Turn]) -> list[Turn]:
    """Return the line of turns that leads to the one written last."""
    by_id = {turn.id: turn for turn in turns}
    branch: list[Turn] = []
    turn = turns[-1] if turns else None
    while turn is not None:
        branch.append(turn)
        turn = by_id.get(turn.parent_id) if turn.parent_id else None
    return branch[::-1]
