"""A conversation: its turns, what is sent to the model, and the reply while it streams.

It is one class because every operation has to keep three things in sync: the turns shown, all turns, and the
store.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import date
from typing import TYPE_CHECKING, Any

import msgspec

from edgechat.base.errors import ChatBusy, ChatNotFound, EdgechatError, PromptTooLong, StoreError
from edgechat.base.text import encodable, one_line
from edgechat.chat.attachments import ChatImages
from edgechat.chat.generation_options import GenerationOptions
from edgechat.chat.messages import messages_around, title_of
from edgechat.chat.model_choice import lasting_name
from edgechat.chat.records import AttachedImage, Attachment, Chat, ChatSettings, Front, Role, Turn, TurnState
from edgechat.chat.reply.calls import ToolAccess
from edgechat.chat.reply.reply import ReplyEvent, ReplyLoop, ReplySaver
from edgechat.chat.storage.store import TITLE_LENGTH, Store
from edgechat.chat.tree import Tree, left_out
from edgechat.engine.protocol import Engine
from edgechat.engine.types import ChatRequest, Message

if TYPE_CHECKING:
    from edgechat.base.images.image import ImageLibrary


class Conversation:
    """A chat. Turns are stored before anything is computed from them.

    `ask` saves a question, and `answer` saves the reply as it streams. If a reply ends early (stopped by the
    user, or interrupted by a crash or exit), the text generated so far is kept. Its state says why it ended,
    and `answer` can continue it.
    """

    def __init__(self, store: Store, model: str, *, front: Front = "app", system: str | None = None) -> None:
        """system: the system prompt, which becomes the first turn."""
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
        """The branch being shown: one version of each question and reply."""
        self._tree = Tree()
        self._store = store
        self._front: Front = front
        self._system = system
        self._stored = False
        self._running: ReplyLoop | None = None
        self._saver: ReplySaver | None = None
        self._removed: list[Turn] = []
        """The turns that `regenerate` removed from `turns`, until a new reply replaces them."""

    @classmethod
    async def load(
        cls, store: Store, chat_id: str, *, front: Front = "app", trashed: bool = False
    ) -> Conversation:
        """Load a stored conversation.

        front: the front end that continues it. trashed: load it read-only from the trash. Raises ChatNotFound
        and StoreError.
        """
        chat, turns = await store.load(chat_id, trashed=trashed)
        conversation = cls(store, chat.model, front=front)
        conversation.chat, conversation._tree, conversation._stored = chat, Tree(turns), True
        conversation.turns = conversation._tree.line(chat.leaf)
        return conversation

    @property
    def state_id(self) -> str | None:
        """The id for saving KV states to disk, or None if the conversation itself is not on disk."""
        return self.chat.id if self._stored and self._store.lasting else None

    @property
    def system(self) -> str | None:
        """The system prompt, or None."""
        if self.turns:
            return self.turns[0].content if self.turns[0].role == "system" else None
        return self._system

    @property
    def images(self) -> ImageLibrary:
        """The library of the conversation's images; its methods access the disk."""
        return self._store.images

    @property
    def settings(self) -> ChatSettings:
        """The generation settings."""
        return self.chat.settings

    @property
    def dropped(self) -> int:
        """The number of exchanges that were left out of the prompt for the last complete reply."""
        usages = (turn.figures.usage for turn in reversed(self.turns) if turn.figures is not None)
        return next((usage.dropped_turns for usage in usages if usage is not None), 0)

    @property
    def can_continue(self) -> bool:
        """Whether the last turn is a reply that ended early, so that `answer` would continue it."""
        return not self.answering and bool(self.turns) and self.turns[-1].is_cut

    def left_out(self) -> Sequence[Turn]:
        """Return the turns that were left out of the prompt for the last complete reply."""
        return left_out(self.turns)

    @property
    def all_turns(self) -> list[Turn]:
        """The turns on all branches, in the order they were written."""
        return self._tree.turns

    @property
    def answering(self) -> bool:
        """Whether a reply is being generated."""
        return self._running is not None

    @property
    def save_error(self) -> StoreError | None:
        """Why the reply being generated cannot currently be saved, or None."""
        return self._saver.save_error if self._saver is not None and self.answering else None

    @property
    def n_messages(self) -> int:
        """The number of user and model turns on the branch being shown."""
        return sum(turn.role != "system" for turn in self.turns)

    @property
    def written_elsewhere(self) -> bool:
        """Whether another program was writing the last reply when the conversation was loaded."""
        return not self.answering and bool(self.turns) and self.turns[-1].state == "streaming"

    async def use_model(self, model: str) -> None:
        """Record the model for future replies, and the front end in use. Raises StoreError."""
        name = lasting_name(model)
        if (name, self._front) != (self.chat.model, self.chat.front):
            await self._update_chat(model=name, front=self._front)

    async def rename(self, title: str) -> None:
        """Set the title; if empty, derive one from the first turn. Raises StoreError."""
        if self._stored:
            title = await self._store.rename(self.chat.id, title)
        title = one_line(title, TITLE_LENGTH)
        self.chat = msgspec.structs.replace(self.chat, title=title)

    @property
    def has_first_title(self) -> bool:
        """Whether the title is still the one derived from the first question."""
        first = next((turn for turn in self.all_turns if turn.role != "system"), None)
        return first is not None and self.chat.title == title_of(first.content, first.attached)

    async def retitle(self, title: str) -> bool:
        """Replace the title that was derived from the first question. Return False if it has changed since.

        Raises StoreError.
        """
        title = one_line(title, TITLE_LENGTH)
        if not (title and self.has_first_title):
            return False
        if not await self._store.retitle(self.chat.id, self.chat.title, title):  # renamed elsewhere
            return False
        self.chat = msgspec.structs.replace(self.chat, title=title)
        return True

    async def pin(self, pinned: bool) -> None:
        """Pin the conversation to the top of the list, or unpin it. Raises StoreError."""
        await self._update_chat(pinned=pinned)

    async def set_settings(self, settings: ChatSettings) -> None:
        """Change the generation settings for future replies. Raises StoreError."""
        await self._update_chat(settings=settings)

    async def set_system(self, text: str | None) -> None:
        """Change the system prompt on all branches; None or blank text removes it.

        Raises StoreError and ChatBusy.
        """
        self._check_free()
        text = encodable(text or "").strip() or None
        if self._stored and text != self.system:
            old = self.turns[0] if self.system is not None else self._turn("system", "", None)
            system = msgspec.structs.replace(old, content=text) if text else None
            await self._store.set_system(self.chat.id, system)
            self._tree.put_system(system)
            others = [self._tree[turn.id] for turn in self.turns if turn.id != old.id]
            self.turns = [system, *others] if system else others
        self._system = text

    async def ask(
        self, text: str, attachments: Sequence[Attachment] = (), images: Sequence[AttachedImage] = ()
    ) -> Turn:
        """Save a question and return it.

        images: must already be in `Store.images`. Any turns that another program has added in the meantime
        are placed before the question in `turns`. Raises StoreError if it cannot be saved, ChatBusy if a
        reply is being generated here or by another program, and ChatNotFound if the chat was deleted.
        """
        self._check_free()
        if not self._stored:
            return await self._begin(text, attachments, images)
        self.put_back()
        # Another program may be writing, or have written, a reply at the end of `turns`.
        if self.turns and (self.written_elsewhere or self.turns[-1].role == "user"):
            await self._catch_up()
        while True:
            parent_id = self.turns[-1].id if self.turns else None
            turn = self._question(text, attachments, images, parent_id)
            if await self._store.add_turn(turn):
                break
            await self._catch_up()
        self._append(turn)
        return turn

    async def edit(
        self,
        turn_id: str,
        text: str,
        attachments: Sequence[Attachment] | None = None,
        images: Sequence[AttachedImage] | None = None,
    ) -> Turn:
        """Save a new version of a question, and end `turns` with it; the old branch stays in the store.

        attachments, images: None keeps the old version's. Raises StoreError, ChatNotFound, and ChatBusy (also
        if another program is writing at the end of `turns`).
        """
        self._check_free()
        self.put_back()
        if self.written_elsewhere:
            await self._catch_up()
        questions = (turn for turn in self.turns if turn.id == turn_id and turn.role == "user")
        old = next(questions, None)
        if old is None:
            raise ChatNotFound("Only a question of this conversation can be edited.")
        turn = self._question(
            text,
            old.attachments if attachments is None else attachments,
            old.images if images is None else images,
            old.parent_id,
        )
        before = self.turns[: self.turns.index(old)]
        await self._store.add_turn(turn, branch=True)
        self.turns = before
        self._append(turn)
        return turn

    def branches(self, turn_id: str) -> tuple[int, int]:
        """Return a turn's index among its versions, and the number of versions; see `Tree.siblings`."""
        ids = [turn.id for turn in self._tree.siblings(turn_id)]
        return (ids.index(turn_id), len(ids)) if ids else (0, 1)

    def versions(self, turn_id: str) -> Sequence[Turn]:
        """Return all versions of a turn, in the order used by `branches`."""
        return self._tree.siblings(turn_id)

    async def switch(self, turn_id: str, to: int) -> None:
        """Show the latest branch that contains version `to` of a turn, now and whenever the chat is reopened.

        Raises StoreError, ChatBusy, and ValueError if there is no version `to`.
        """
        self._check_free()
        siblings = self._tree.siblings(turn_id)
        if not 0 <= to < len(siblings):
            raise ValueError(f"there is no branch {to} of {len(siblings)}")
        await self._show_line(siblings[to].id)

    async def go_to(self, turn_id: str) -> None:
        """Show the latest branch that contains a turn not in `turns`, now and whenever the chat is reopened.

        Raises StoreError, ChatNotFound if there is no such turn, and ChatBusy if a reply is being generated.
        """
        if any(turn.id == turn_id for turn in self.turns):
            return
        self._check_free()
        if turn_id not in self._tree and self._stored:
            _, turns = await self._store.load(self.chat.id)
            self._tree = Tree(turns)
        if turn_id not in self._tree:
            raise ChatNotFound("The message that was found is no longer in this conversation.")
        await self._show_line(turn_id)

    async def take_back_question(self) -> None:
        """Undo the last `ask` or `edit`: remove the question from `turns` and the store. Raises StoreError.

        A chat left empty is deleted; the next question starts a new one with the same system prompt. After an
        `edit`, the old version is shown again.
        """
        question = next((turn for turn in reversed(self.turns) if turn.role == "user"), None)
        if question is None:
            raise RuntimeError("there is no question to take back")
        if self._tree.has_others(question.id):
            await self._store.delete_turn(question.id)
            self._tree.remove(question.id)
            self.turns = self._tree.line(question.parent_id)
        else:
            await self._store.take_back(self.chat.id)
            self._system, self._stored = self.system, False
            self.chat = msgspec.structs.replace(self.chat, id=uuid.uuid4().hex, title="")
            self.turns, self._tree = [], Tree()

    async def answer(
        self,
        engine: Engine,
        options: GenerationOptions = GenerationOptions(),  # noqa: B008  (it is frozen)
        *,
        access: ToolAccess | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> AsyncGenerator[ReplyEvent, None]:
        """Stream the reply to the question at the end of `turns`, and append it, even if incomplete.

        A reply that ended early (`Turn.is_cut`) is continued in the same turn. Its existing text is kept, and
        it stays unchanged if nothing is added. access: the tools that the reply can call; None for no tools.

        Raises StoreError and, once the text so far is saved, any error from the engine. On PromptTooLong, the
        question is taken back, unless it already has another reply. Callers that might stop early must close
        the generator (`contextlib.aclosing`).
        """
        last = self.turns[-1] if self.turns else None
        if self.answering or last is None or not (last.role == "user" or last.is_cut):
            raise RuntimeError("there is no user turn waiting for an answer")
        if last.is_cut:
            reply = msgspec.structs.replace(last, state="streaming", error=None)
        else:
            reply = self._turn("assistant", "", last.id, state="streaming")
        request = options.request(uuid.uuid4().hex if last.is_cut else reply.id, self.chat)
        saver = self._saver = ReplySaver(self._store, reply, before=last if last.is_cut else None)
        images = ChatImages(lambda: self.images)
        self._running = ReplyLoop(engine, saver, access or ToolAccess(), images, on_progress)
        try:
            messages, begun = messages_around(self.turns, await images.find(self.turns, engine.model))
            request = msgspec.structs.replace(request, messages=(*messages, *begun))
            async with aclosing(self._write(self._running, saver, request, messages)) as events:
                async for event in events:
                    yield event
        finally:
            self._running = None

    def regenerate(self, turn_id: str | None = None) -> None:
        """Remove the last reply from `turns`, but not from the store; `answer` then writes another version.

        turn_id: a reply, or its question; everything after it is removed too. `put_back` undoes this. Raises
        ChatBusy, and ChatNotFound if there is no question yet.
        """
        self._check_free()
        if self.written_elsewhere:
            raise _written_elsewhere()
        self.put_back()
        at = next((at for at, turn in enumerate(self.turns) if turn.id == turn_id), len(self.turns) - 1)
        while at >= 0 and self.turns[at].role != "user":
            at -= 1
        if at < 0:
            raise ChatNotFound("There is no question yet to answer again.")
        self.turns, self._removed = self.turns[: at + 1], self.turns[at + 1 :]

    def put_back(self) -> None:
        """Restore the turns that `regenerate` removed, unless a reply has started or `turns` has changed."""
        removed, self._removed = self._removed, []
        if removed and not self.answering and self.turns and self.turns[-1].id == removed[0].parent_id:
            self.turns = [*self.turns, *removed]

    async def stop(self) -> bool:
        """Stop the reply and its running tool calls, which are marked as stopped.

        Returns True if the stream will end by itself. Returns False if it has not started, for example
        because the model is still loading; the caller should then close the stream.
        """
        return await self._running.stop() if self._running is not None else False

    async def _write(
        self, loop: ReplyLoop, saver: ReplySaver, request: ChatRequest, messages: tuple[Message, ...]
    ) -> AsyncGenerator[ReplyEvent, None]:
        error: EdgechatError | None = None
        try:
            await saver.begin()
            async with aclosing(loop.run(request, messages)) as events:
                async for event in events:
                    yield event
        except EdgechatError as exc:
            error = exc
            raise
        finally:
            if saver.begun:
                self._removed = []
                await self._end(loop, saver, error)

    async def _end(self, loop: ReplyLoop, saver: ReplySaver, error: EdgechatError | None) -> None:
        asked = self.turns[-1]
        is_unanswered = asked.role == "user" and not saver.has_grown and not self._tree.is_answered(asked.id)
        if isinstance(error, PromptTooLong) and is_unanswered:
            await saver.rest()
            with suppress(StoreError):
                chat_id = self.chat.id
                await self.take_back_question()
                if not self._stored:
                    loop.engine.forget(chat_id)
                return
        state = loop.end_state(saver.turn, error)
        try:
            if saver.continues and not saver.has_grown and state != "complete":
                await saver.restore()
            else:
                await saver.end(state, error)
        finally:
            self._append(saver.turn)

    async def _update_chat(self, **values: Any) -> None:
        if self._stored:
            await self._store.update_chat(self.chat.id, **values)
        self.chat = msgspec.structs.replace(self.chat, **values)

    async def _show_line(self, turn_id: str) -> None:
        line = self._tree.line(turn_id)
        await self._store.update_chat(self.chat.id, leaf=line[-1].id)
        self.turns = line

    def _check_free(self) -> None:
        if self.answering:
            raise ChatBusy(
                "An answer is being generated in this conversation.",
                hint="Stop it, or wait until it has finished.",
            )

    async def _catch_up(self) -> None:
        """Load any turns that another program has added.

        Raises ChatBusy if that program is still writing, ChatNotFound and StoreError.
        """
        _, turns = await self._store.load(self.chat.id)
        tree = Tree(turns)
        line = tree.line(self.turns[-1].id)
        if line and line[-1].state == "streaming":
            raise _written_elsewhere()
        self._tree, self.turns = tree, line

    async def _begin(
        self, text: str, attachments: Sequence[Attachment], images: Sequence[AttachedImage]
    ) -> Turn:
        """Store the chat with its first question, and return the question."""
        system = self._turn("system", self._system, None) if self._system else None
        turn = self._question(text, attachments, images, system.id if system else None)
        now, title = time.time(), self.chat.title or title_of(turn.content, turn.attached)
        chat = msgspec.structs.replace(self.chat, title=title, created_at=now, updated_at=now)
        await self._store.add_turn(turn, chat=chat, system=system)
        self.chat, self._stored = chat, True
        if system is not None:
            self._append(system)
        self._append(turn)
        return turn

    def _append(self, turn: Turn) -> None:
        """Append a turn, or replace the last one with its new state."""
        if self.turns and self.turns[-1].id == turn.id:
            self.turns[-1] = turn
        else:
            self.turns.append(turn)
        self._tree.put(turn)

    def _question(
        self,
        text: str,
        attachments: Sequence[Attachment],
        images: Sequence[AttachedImage],
        parent_id: str | None,
    ) -> Turn:
        return msgspec.structs.replace(
            self._turn("user", encodable(text), parent_id),
            attachments=tuple(
                msgspec.structs.replace(file, name=encodable(file.name), text=encodable(file.text))
                for file in attachments
            ),
            images=tuple(msgspec.structs.replace(image, name=encodable(image.name)) for image in images),
        )

    def _turn(
        self,
        role: Role,
        content: str,
        parent_id: str | None,
        *,
        state: TurnState = "complete",
    ) -> Turn:
        return Turn(
            id=uuid.uuid4().hex,
            chat_id=self.chat.id,
            role=role,
            content=content,
            state=state,
            parent_id=parent_id,
            created_at=time.time(),
        )


def nothing_to_continue() -> ChatNotFound:
    """Return the error to raise when `Conversation.can_continue` is False."""
    return ChatNotFound(
        "There is no answer to continue.",
        hint="Only the last answer can be continued, if it was stopped, interrupted or cut off.",
    )


def _written_elsewhere() -> ChatBusy:
    return ChatBusy(
        "Another edgechat is generating an answer in this conversation.",
        hint="Wait until it has finished, then send again.",
    )
