"""A conversation: what was said, what the model is sent, and the reply as it comes."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from datetime import date
from pathlib import Path

import msgspec

from edgechat.chat.draft import Draft
from edgechat.chat.engine import Engine, Manner
from edgechat.chat.messages import last_branch, messages_of
from edgechat.chat.records import Chat, Front, Turn, TurnState
from edgechat.chat.store import Store
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    RequestEvent,
    Role,
)
from edgechat.errors import ChatNotFound, EdgechatError, PromptTooLong, StoreError
from edgechat.text import one_line

_TITLE_LENGTH = 60


class Conversation:
    """One chat, of which every word is in the store before it is computed with.

    A turn of the user is saved by `ask`, a reply while it streams by `answer`; `send` is both. What ends a
    reply early (the reader, a crash, the program's end) is its state, and the text so far stays.
    """

    def __init__(self, store: Store, model: str, *, front: Front = "app", system: str | None = None) -> None:
        """`system` is the system prompt, which becomes the first turn."""
        now = time.time()
        self.chat = Chat(
            id=uuid.uuid4().hex,
            title="",
            model=lasting_name(model),
            date=date.today().isoformat(),
            created_at=now,
            updated_at=now,
            front=front,
        )
        self.turns: list[Turn] = []
        """What was said, in order; of several tries at an answer the last."""
        self._store = store
        self._front: Front = front
        self._system = system
        self._stored = False
        self._running: tuple[Engine, str] | None = None
        self._begun = False
        self._stopping = False
        self._has_words = False
        """Whether a reply to the last turn of the user is in the store that is worth keeping."""

    @classmethod
    async def load(cls, store: Store, chat_id: str, *, front: Front = "app") -> Conversation:
        """Return a stored conversation, to be held at `front` now. Raises ChatNotFound and StoreError."""
        chat, turns = await store.load(chat_id)
        conversation = cls(store, chat.model, front=front)
        conversation.chat, conversation.turns, conversation._stored = chat, last_branch(turns), True
        return conversation

    @property
    def kept_as(self) -> str | None:
        """The id under which the engine keeps on disk what it computed; None where nothing may be kept."""
        return self.chat.id if self._stored and self._store.lasting else None

    @property
    def system(self) -> str | None:
        """The system prompt."""
        if self.turns:
            return self.turns[0].content if self.turns[0].role == "system" else None
        return self._system

    @property
    def dropped(self) -> int:
        """How many turns the last reply that came to its end was written without."""
        replies = (turn.figures for turn in reversed(self.turns) if turn.figures is not None)
        return next((figures.usage.dropped_turns for figures in replies if figures.usage is not None), 0)

    @property
    def answering(self) -> bool:
        """Whether a reply is being written."""
        return self._running is not None

    @property
    def n_messages(self) -> int:
        """How many things were said by the user and by the model."""
        return sum(turn.role != "system" for turn in self.turns)

    @property
    def being_written(self) -> bool:
        """Whether another program is writing the last reply, as far as was known when it was loaded."""
        return not self.answering and bool(self.turns) and self.turns[-1].state == "streaming"

    @property
    def can_retry(self) -> bool:
        """Whether the last turn of the user has no complete reply."""
        return bool(self.turns) and (self.turns[-1].role == "user" or self.turns[-1].state != "complete")

    async def use_model(self, model: str) -> None:
        """Note which model writes from now on, and where. Raises StoreError."""
        chat = msgspec.structs.replace(self.chat, model=lasting_name(model), front=self._front)
        if chat != self.chat:
            if self._stored:
                await self._store.note_use(chat.id, chat.model, chat.front)
            self.chat = chat

    async def ask(self, text: str) -> Turn:
        """Save a turn of the user and return it. Raises StoreError, and then nothing has changed.

        What another program has said in the chat meanwhile comes before it in `turns`; ChatNotFound where
        the chat is gone, or that program is still writing.
        """
        text = text.encode("utf-8", "replace").decode()
        if self._stored:
            turn = self._new_turn("user", text)
            while not await self._store.add_turn(turn):
                await self._catch_up()
                turn = self._new_turn("user", text)
            self.turns.append(turn)
        else:
            turn = await self._begin(text)
        self._has_words = False
        return turn

    async def take_back_question(self) -> None:
        """Undo the last `ask`: question and replies leave `turns` and the store. Raises StoreError.

        A chat of which nothing is left is deleted; the next question begins another, with the same system
        prompt.
        """
        index = max(at for at, turn in enumerate(self.turns) if turn.role == "user")
        if any(turn.role != "system" for turn in self.turns[:index]):
            await self._store.delete_turn(self.turns[index].id)
            del self.turns[index:]
        else:
            await self._store.delete(self.chat.id)
            self._system, self._stored = self.system, False
            self.chat = msgspec.structs.replace(self.chat, id=uuid.uuid4().hex)
            self.turns.clear()

    async def answer(
        self,
        engine: Engine,
        manner: Manner = Manner(),  # noqa: B008  (it is frozen)
        *,
        on_progress: Callable[[float], None] | None = None,
    ) -> AsyncGenerator[RequestEvent, None]:
        """Stream the reply to the last turn of the user; afterwards it is `turns[-1]`, whatever became of it.

        Raises the engine's errors after the text so far has been saved, and StoreError. PromptTooLong takes
        the question back, which no reply could follow, unless there are words of an earlier try. Close the
        generator (`contextlib.aclosing`) if it may not run to its end.
        """
        if self.answering or not self.turns or self.turns[-1].role != "user":
            raise RuntimeError("there is no turn of the user that waits for an answer")
        reply = self._new_turn("assistant", "", state="streaming")
        request = ChatRequest(
            id=reply.id,
            messages=messages_of(self.turns),
            sampling=manner.sampling,
            max_tokens=manner.max_tokens,
            stop=manner.stop,
            think=manner.think,
            overflow=manner.overflow,
            date=self.chat.date,
            chat=self.chat.id,
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
                await self._end(draft, engine, finished, error)

    async def _end(
        self, draft: Draft, engine: Engine, finished: Finished | None, error: EdgechatError | None
    ) -> None:
        if isinstance(error, PromptTooLong) and not self._has_words:
            await draft.rest()
            with suppress(StoreError):
                asked_in = self.chat.id
                await self.take_back_question()
                if not self._stored:
                    engine.forget(asked_in)
                return
        try:
            await draft.end(self._end_state(draft.turn, finished, error), engine.model, finished, error)
        finally:
            self.turns.append(draft.turn)

    def _end_state(self, turn: Turn, finished: Finished | None, error: EdgechatError | None) -> TurnState:
        if finished is not None and finished.reason != "cancelled":
            return "complete"
        if finished is not None or self._stopping:
            return "stopped"
        return "interrupted" if error is None or turn.content or turn.thinking else "failed"

    async def _catch_up(self) -> None:
        """Take over what another program has said in this chat. Raises ChatNotFound and StoreError."""
        _, turns = await self._store.load(self.chat.id)
        if turns and turns[-1].state == "streaming":
            raise ChatNotFound(
                "Another edgechat is writing an answer in this conversation.",
                hint="Wait for its end, then send again.",
            )
        self.turns = last_branch(turns)

    async def _begin(self, text: str) -> Turn:
        """Store the chat with its first question, which is returned."""
        now, title = time.time(), one_line(text, _TITLE_LENGTH)
        chat = msgspec.structs.replace(self.chat, title=title, created_at=now, updated_at=now)
        system = self._new_turn("system", self._system) if self._system else None
        turn = self._new_turn("user", text, after=system)
        await self._store.add_turn(turn, chat=chat, system=system)
        self.chat, self._stored = chat, True
        self.turns += [system, turn] if system else [turn]
        return turn

    def _new_turn(
        self, role: Role, content: str, *, after: Turn | None = None, state: TurnState = "complete"
    ) -> Turn:
        after = after or (self.turns[-1] if self.turns else None)
        return Turn(
            id=uuid.uuid4().hex,
            chat_id=self.chat.id,
            role=role,
            content=content,
            state=state,
            parent_id=after.id if after else None,
            created_at=time.time(),
        )


def lasting_name(model: str) -> str:
    """Return what names this model also from another folder: the whole path, where it is a file."""
    file = Path(model)
    return str(file.absolute()) if file.is_file() else model
