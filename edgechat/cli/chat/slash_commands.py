"""The commands that can be typed in a conversation on the command line: /help and the others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from edgechat.base.errors import AttachmentError, ChatBusy, EdgechatError
from edgechat.base.text import ago, one_line, printable
from edgechat.chat import attachments, parameters
from edgechat.chat.commands import check, commands_of, parse_command
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export import files
from edgechat.chat.import_export.export import counted
from edgechat.chat.import_export.importing import parse_chat
from edgechat.chat.records import TRASH_DAYS, Attachment, Chat, Hit
from edgechat.chat.session import ChatSession
from edgechat.chat.storage.store import Store

T = TypeVar("T")
_SOME = 20


class CommandTarget(Protocol):
    """What the commands work on: a conversation held line by line."""

    session: ChatSession
    store: Store
    talk: Conversation
    """The conversation."""
    attachments: list[Attachment]
    """What is sent along with the next question."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine; return its result, or raise its error."""
        ...

    def begin(self) -> None:
        """Let the next question begin another conversation."""
        ...

    def go_on_with(self, talk: Conversation) -> None:
        """Let the next question go on with a stored conversation."""
        ...

    def use_model(self, name: str) -> None:
        """Let another model answer from now on. Raises EdgechatError."""
        ...

    def retry(self) -> None:
        """Regenerate the last reply. Raises EdgechatError."""
        ...


class SlashCommands:
    """Runs the commands. They write to stderr, as everything does that is not an answer."""

    def __init__(self, target: CommandTarget) -> None:
        self.ended = False
        self._target = target

    def obeys(self, line: str) -> bool:
        """Run a line if it is a command; return whether it is one. Raises EdgechatError."""
        found = parse_command(line)
        if found is None:
            return False
        name, argument = found
        check(name, argument, "run")
        if name in parameters.COMMANDS:
            target = self._target
            _say(target.run(parameters.adjust(target.session, target.talk, name, argument)))
        else:
            handler: Callable[[str], None] = getattr(self, f"_{name}")
            handler(argument)
        return True

    def _help(self, _: str) -> None:
        for command in commands_of("run"):
            _say(f"{command.usage}: {command.description}.")
        _say("Anything else is sent as a question; type //word to send one that begins with /word.")

    def _new(self, _: str) -> None:
        self._target.begin()
        _say("A new conversation.")

    def _model(self, name: str) -> None:
        if name:
            self._target.use_model(name)
        plan = self._target.session.plan
        assert plan is not None
        _say(f"{'Switched to' if name else 'The model is'} {one_line(plan.model_name, 60)}.")

    def _retry(self, _: str) -> None:
        self._target.retry()

    def _attach(self, path: str) -> None:
        attached = self._target.attachments
        if len(attached) >= attachments.MOST:
            raise AttachmentError(
                f"A question can have at most {attachments.MOST} attachments.", hint="Send these first."
            )
        attached.append(attachments.read(path))
        _say(f"{one_line(attached[-1].name, 60)} will be sent with the next question.")

    def _rename(self, title: str) -> None:
        self._target.run(self._stored().rename(title))
        _say(f"Renamed to “{one_line(title, 60)}”.")

    def _pin(self, _: str) -> None:
        talk = self._stored()
        pinned = not talk.chat.pinned
        self._target.run(talk.pin(pinned))
        _say("Pinned to the top of the list." if pinned else "No longer pinned.")

    def _export(self, name: str) -> None:
        _say(f"Written to {one_line(str(files.export_to_file(self._stored(), name)), 300)}")

    def _import(self, name: str) -> None:
        new = parse_chat(files.read(name))
        self._target.run(self._target.store.add(new.chat, new.turns))
        self._open(new.chat.id)

    def _delete(self, _: str) -> None:
        target, talk = self._target, self._stored()
        target.run(target.store.trash(talk.chat.id))
        target.begin()
        target.session.forget(talk.chat.id)
        way_back = f" To restore it within {TRASH_DAYS} days: edgechat chats restore {talk.chat.id[:8]}"
        _say(f"Deleted “{_title(talk.chat)}”.{way_back if target.store.lasting else ''}")

    def _stored(self) -> Conversation:
        if not self._target.talk.n_messages:
            raise EdgechatError("This conversation is empty.", hint="Send a message first.")
        return self._target.talk

    def _chats(self, _: str = "") -> None:
        found = self._target.run(self._target.store.listed(_SOME + 1))
        if not found:
            _say("There are no conversations yet.")
        for one in found[:_SOME]:
            when = ago(time.time() - one.chat.updated_at)
            _say(f"{one.prefix}: {_title(one.chat)}, {counted(one.n_messages)}, {when}.")
        if len(found) > _SOME:
            _say("There are more; to list them: edgechat chats")

    def _open(self, prefix: str) -> None:
        talk = self._target.run(self._loaded(prefix))
        self._target.go_on_with(talk)
        _say(f"Continuing: {_title(talk.chat)} ({counted(talk.n_messages)}).")
        last = [turn for turn in talk.turns if turn.role != "system"][-2:]
        for turn in last:
            who = "You said" if turn.role == "user" else "The answer was"
            _say(f"{who}: {printable(turn.content).strip() or 'nothing'}")

    async def _loaded(self, prefix: str) -> Conversation:
        target = self._target
        talk = await target.session.open((await target.store.find(prefix)).id)
        if talk.written_elsewhere:
            raise ChatBusy(
                f"Another edgechat is generating an answer in the conversation {talk.chat.title!r}.",
                hint="Wait until it has finished, or open another conversation.",
            )
        return talk

    def _search(self, text: str) -> None:
        if not text:  # every conversation matches
            self._chats()
            return
        found = self._target.run(self._target.store.search(text, _SOME))
        if not found:
            _say(f"No message contains {one_line(text, 60)!r}.")
        for hit in found:
            _say(f"{hit.chat.id[:8]}: {_title(hit.chat)}, {_speaker(hit)}: {one_line(hit.snippet)}")
        if found:
            _say("To continue one of these: /open ID")

    def _quit(self, _: str) -> None:
        self.ended = True


def _title(chat: Chat) -> str:
    return one_line(chat.title, 60)


def _speaker(hit: Hit) -> str:
    if not hit.turn_id:
        return "in its title"
    return {"user": "you", "assistant": "the answer"}.get(hit.role, "the system prompt")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
