"""A conversation: what was said, what the model is sent, and the reply as it comes.

Longer than most files: all that may be done with a conversation keeps the same few things in step, which are
the line of turns that is shown, all the turns there are, and the store.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import date

import msgspec

from edgechat.base.errors import ChatBusy, ChatNotFound, EdgechatError, PromptTooLong, StoreError
from edgechat.base.text import one_line
from edgechat.chat.draft import ReplySaver
from edgechat.chat.generation_options import GenerationOptions
from edgechat.chat.messages import messages_of, title_of
from edgechat.chat.model_choice import lasting_name
from edgechat.chat.records import Attachment, Chat, ChatSettings, Front, Role, Turn, TurnState
from edgechat.chat.storage.store import TITLE_LENGTH, Store
from edgechat.chat.tree import Tree, left_out
from edgechat.engine.protocol import Engine
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Finished,
    RequestEvent,
)


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
        """What was said, in order: of tries at a reply and wordings of a question the one that is shown."""
        self._tree = Tree()
        self._store = store
        self._front: Front = front
        self._system = system
        self._stored = False
        self._running: tuple[Engine, str] | None = None
        self._draft: ReplySaver | None = None
        self._begun = False
        self._stopping = False
        self._taken: list[Turn] = []
        """What `regenerate` took out of `turns`, until a reply has begun in its place."""

    @classmethod
    async def load(
        cls, store: Store, chat_id: str, *, front: Front = "app", trashed: bool = False
    ) -> Conversation:
        """Return a stored conversation, to be held at `front` now, or (trashed) one in the trash, to be read.

        Raises ChatNotFound and StoreError.
        """
        chat, turns = await store.load(chat_id, trashed=trashed)
        conversation = cls(store, chat.model, front=front)
        conversation.chat, conversation._tree, conversation._stored = chat, Tree(turns), True
        conversation.turns = conversation._tree.line(chat.leaf)
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
    def settings(self) -> ChatSettings:
        """How replies are generated."""
        return self.chat.settings

    @property
    def dropped(self) -> int:
        """How many turns the last reply that came to its end was written without."""
        replies = (turn.figures for turn in reversed(self.turns) if turn.figures is not None)
        return next((figures.usage.dropped_turns for figures in replies if figures.usage is not None), 0)

    def left_out(self) -> Sequence[Turn]:
        """Return the turns that the last reply that came to its end was written without."""
        return left_out(self.turns)

    @property
    def all_turns(self) -> list[Turn]:
        """Every turn that is known, other tries and wordings included, in the order of writing."""
        return self._tree.turns

    @property
    def answering(self) -> bool:
        """Whether a reply is being written."""
        return self._running is not None

    @property
    def trouble(self) -> StoreError | None:
        """Why the words of the reply that is being written are not saved at the moment."""
        return self._draft.trouble if self._draft is not None and self.answering else None

    @property
    def n_messages(self) -> int:
        """How many things were said by the user and by the model."""
        return sum(turn.role != "system" for turn in self.turns)

    @property
    def being_written(self) -> bool:
        """Whether another program is writing the last reply, as far as was known when it was loaded."""
        return not self.answering and bool(self.turns) and self.turns[-1].state == "streaming"

    async def use_model(self, model: str) -> None:
        """Note which model writes from now on, and where. Raises StoreError."""
        chat = msgspec.structs.replace(self.chat, model=lasting_name(model), front=self._front)
        if chat != self.chat:
            if self._stored:
                await self._store.update_chat(chat.id, model=chat.model, front=chat.front)
            self.chat = chat

    async def rename(self, title: str) -> None:
        """Give it another title; without letters, the one made from its first turn. Raises StoreError."""
        if self._stored:
            title = await self._store.rename(self.chat.id, title)
        title = one_line(_as_text(title), TITLE_LENGTH)
        self.chat = msgspec.structs.replace(self.chat, title=title)

    async def pin(self, pinned: bool) -> None:
        """Keep it at the top of the list, or no longer. Raises StoreError."""
        if self._stored:
            await self._store.update_chat(self.chat.id, pinned=pinned)
        self.chat = msgspec.structs.replace(self.chat, pinned=pinned)

    async def set_settings(self, settings: ChatSettings) -> None:
        """Decide how replies are written from now on. Raises StoreError."""
        if self._stored:
            await self._store.update_chat(self.chat.id, settings=settings)
        self.chat = msgspec.structs.replace(self.chat, settings=settings)

    async def set_system(self, text: str | None) -> None:
        """Change the system prompt of all lines; nothing, or an empty text, removes it.

        Raises StoreError, and ChatBusy.
        """
        self._check_free()
        text = _as_text(text or "").strip() or None
        if self._stored and text != self.system:
            had = self.system is not None
            old, said = (
                (self.turns[0], self.turns[1:]) if had else (self._turn("system", "", None), self.turns)
            )
            system = msgspec.structs.replace(old, content=text) if text else None
            await self._store.set_system(self.chat.id, system)
            self._tree.put_system(system)
            self.turns = [*([system] if system else []), *(self._tree[turn.id] for turn in said)]
        self._system = text

    async def ask(self, text: str, attachments: Sequence[Attachment] = ()) -> Turn:
        """Save a turn of the user and return it. Raises StoreError, and then no question is saved.

        What another program has said in the chat meanwhile comes before it in `turns`. Raises ChatBusy where
        a reply is being written, be it there, and ChatNotFound where the chat is gone.
        """
        self._check_free()
        if not self._stored:
            return await self._begin(_as_text(text), _clean(attachments))
        self.put_back()
        if self._may_have_gone_on:
            await self._catch_up()
        turn = self._question(text, attachments)
        while not await self._store.add_turn(turn):
            await self._catch_up()
            turn = self._question(text, attachments)
        self._append(turn)
        return turn

    async def edit(self, turn_id: str, text: str, attachments: Sequence[Attachment] | None = None) -> Turn:
        """Ask a question of `turns` in other words: `turns` ends with them, the old line stays in the store.

        attachments: None keeps those of the old wording. Raises StoreError, ChatNotFound, and ChatBusy, also
        where another program is writing at the end of `turns`.
        """
        self._check_free()
        self.put_back()
        if self.being_written:
            await self._catch_up()
        places = [at for at, turn in enumerate(self.turns) if turn.id == turn_id and turn.role == "user"]
        if not places:
            raise ChatNotFound("Only a question of this conversation can be edited.")
        old, before = self.turns[places[0]], self.turns[: places[0]]
        kept = old.attachments if attachments is None else _clean(attachments)
        turn = self._turn("user", _as_text(text), old.parent_id, attachments=kept)
        await self._store.add_turn(turn, branch=True)
        self.turns = before
        self._append(turn)
        return turn

    def branches(self, turn_id: str) -> tuple[int, int]:
        """Return which one (from 0) a turn is of those that may stand in its place, and how many they are.

        These are the tries at a reply of which words came, or the wordings of a question.
        """
        ids = [turn.id for turn in self._tree.siblings(turn_id)]
        return (ids.index(turn_id), len(ids)) if ids else (0, 1)

    async def switch(self, turn_id: str, to: int) -> None:
        """Show the line through another of a turn's `branches`, to its latest end; so it is when reopened.

        Raises StoreError, ChatBusy, and ValueError for a number that is none of them.
        """
        self._check_free()
        siblings = self._tree.siblings(turn_id)
        if not 0 <= to < len(siblings):
            raise ValueError(f"there is no branch {to} of {len(siblings)}")
        line = self._tree.line(siblings[to].id)
        await self._store.update_chat(self.chat.id, leaf=line[-1].id)
        self.turns = line

    async def go_to(self, turn_id: str) -> None:
        """Show the line through a turn, to its latest end, where `turns` has it not; so it is when reopened.

        Raises StoreError, ChatNotFound where there is no such turn, and ChatBusy where a reply is written.
        """
        if any(turn.id == turn_id for turn in self.turns):
            return
        self._check_free()
        if turn_id not in self._tree and self._stored:
            _, turns = await self._store.load(self.chat.id)
            self._tree = Tree(turns)
        if turn_id not in self._tree:
            raise ChatNotFound("The message that was found is no longer in this conversation.")
        line = self._tree.line(turn_id)
        await self._store.update_chat(self.chat.id, leaf=line[-1].id)
        self.turns = line

    async def take_back_question(self) -> None:
        """Undo the last `ask` or `edit`: question and replies leave `turns` and the store. Raises StoreError.

        A chat of which nothing is left is deleted; the next question begins another, with the same system
        prompt. After an `edit` the old wording is shown again.
        """
        question = self._last_question
        if question is None:
            raise RuntimeError("there is no question to take back")
        if self._tree.has_others(question.id):
            await self._store.delete_turn(question.id)
            self._tree.remove(question.id)
            self.turns = self._tree.line(question.parent_id)
        else:
            await self._store.delete(self.chat.id)
            self._system, self._stored = self.system, False
            self.chat = msgspec.structs.replace(self.chat, id=uuid.uuid4().hex, title="")
            self.turns, self._tree = [], Tree()

    async def answer(
        self,
        engine: Engine,
        manner: GenerationOptions = GenerationOptions(),  # noqa: B008  (it is frozen)
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
        reply = self._turn("assistant", "", self.turns[-1].id, state="streaming")
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
            draft = self._draft = ReplySaver(self._store, reply)
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

    def regenerate(self, turn_id: str | None = None) -> None:
        """Make room for another try, which `answer` writes: the last reply leaves `turns`, not the store.

        With the id of a turn it is the reply to that question, or that reply, and all that follows it.
        `put_back` undoes it where no try can begin. Raises ChatBusy, and ChatNotFound where nothing was
        asked yet.
        """
        self._check_free()
        if self.being_written:
            raise _written_elsewhere()
        self.put_back()
        at = next((at for at, turn in enumerate(self.turns) if turn.id == turn_id), len(self.turns) - 1)
        while at >= 0 and self.turns[at].role != "user":
            at -= 1
        if at < 0:
            raise ChatNotFound("There is no question yet to answer again.")
        self.turns, self._taken = self.turns[: at + 1], self.turns[at + 1 :]

    def put_back(self) -> None:
        """Show again what `regenerate` took away, where `answer` has begun no reply in its place.

        Nothing happens where it has, where nothing was taken, or where `turns` ends elsewhere by now.
        """
        taken, self._taken = self._taken, []
        if taken and not self.answering and self.turns and self.turns[-1].id == taken[0].parent_id:
            self.turns = [*self.turns, *taken]

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
        draft: ReplySaver,
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
                self._taken = []
                await self._end(draft, engine, finished, error)

    async def _end(
        self, draft: ReplySaver, engine: Engine, finished: Finished | None, error: EdgechatError | None
    ) -> None:
        if isinstance(error, PromptTooLong) and not self._tree.is_answered(self.turns[-1].id):
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
            self._append(draft.turn)

    def _end_state(self, turn: Turn, finished: Finished | None, error: EdgechatError | None) -> TurnState:
        if finished is not None and finished.reason != "cancelled":
            return "complete"
        if finished is not None or self._stopping:
            return "stopped"
        return "interrupted" if error is None or turn.content or turn.thinking else "failed"

    @property
    def _may_have_gone_on(self) -> bool:
        """Whether another program's reply may stand, or grow, at the end of `turns` unknown to this one."""
        return bool(self.turns) and (self.being_written or self.turns[-1].role == "user")

    @property
    def _last_question(self) -> Turn | None:
        return next((turn for turn in reversed(self.turns) if turn.role == "user"), None)

    def _check_free(self) -> None:
        if self.answering:
            raise ChatBusy(
                "An answer is being generated in this conversation.",
                hint="Stop it, or wait until it has finished.",
            )

    async def _catch_up(self) -> None:
        """Take over what another program has said in this chat.

        Raises ChatBusy where it is still writing, ChatNotFound and StoreError.
        """
        _, turns = await self._store.load(self.chat.id)
        tree = Tree(turns)
        line = tree.line(self.turns[-1].id)
        if line and line[-1].state == "streaming":
            raise _written_elsewhere()
        self._tree, self.turns = tree, line

    async def _begin(self, text: str, attachments: tuple[Attachment, ...]) -> Turn:
        """Store the chat with its first question, which is returned."""
        now, title = time.time(), self.chat.title or title_of(text, attachments)
        chat = msgspec.structs.replace(self.chat, title=title, created_at=now, updated_at=now)
        system = self._turn("system", self._system, None) if self._system else None
        turn = self._turn("user", text, system.id if system else None, attachments=attachments)
        await self._store.add_turn(turn, chat=chat, system=system)
        self.chat, self._stored = chat, True
        for one in (system, turn):
            if one is not None:
                self._append(one)
        return turn

    def _append(self, turn: Turn) -> None:
        self.turns.append(turn)
        self._tree.put(turn)

    def _question(self, text: str, attachments: Sequence[Attachment]) -> Turn:
        after = self.turns[-1].id if self.turns else None
        return self._turn("user", _as_text(text), after, attachments=_clean(attachments))

    def _turn(
        self,
        role: Role,
        content: str,
        parent_id: str | None,
        *,
        state: TurnState = "complete",
        attachments: tuple[Attachment, ...] = (),
    ) -> Turn:
        return Turn(
            id=uuid.uuid4().hex,
            chat_id=self.chat.id,
            role=role,
            content=content,
            state=state,
            parent_id=parent_id,
            created_at=time.time(),
            attachments=attachments,
        )


def _written_elsewhere() -> ChatBusy:
    return ChatBusy(
        "Another edgechat is generating an answer in this conversation.",
        hint="Wait until it has finished, then send again.",
    )


def _as_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _clean(attachments: Sequence[Attachment]) -> tuple[Attachment, ...]:
    return tuple(Attachment(_as_text(one.name), _as_text(one.text)) for one in attachments)
