"""Slash commands, such as /help, for conversations on the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from edgechat.base.errors import ChatBusy, EdgechatError
from edgechat.base.text import ago, one_line, printable
from edgechat.chat import parameters
from edgechat.chat.commands import check, commands_of, parse_command
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export import export as files
from edgechat.chat.import_export.export import counted
from edgechat.chat.import_export.importing import add_chat, parse_chat
from edgechat.chat.records import TRASH_DAYS, Chat, Hit
from edgechat.cli.chat.loop import ChatLoop

_MOST_LISTED = 20


class SlashCommands:
    """Runs slash commands. Their output goes to stderr, because stdout is only for answers."""

    def __init__(self, target: ChatLoop) -> None:
        self._target = target
        self._wait_for = target.background.run

    def run(self, line: str) -> bool:
        """Run a line if it is a command, and return whether it is one. Raises EdgechatError."""
        command = parse_command(line)
        if command is None:
            return False
        name, argument = command
        check(name, argument, "run")
        target = self._target
        if name == "docs" and parameters.is_folder_of_documents(argument):
            _say(target.add_documents(argument))
        elif name in parameters.ADJUSTING_COMMANDS:
            adjusting = parameters.adjust(target.session, target.conversation, name, argument)
            _say(self._wait_for(adjusting))
        else:
            handler: Callable[[str], None] = getattr(self, f"_{name}")
            handler(argument)
        return True

    def _help(self, _: str) -> None:
        for command in commands_of("run"):
            _say(f"{command.usage}: {command.description}.")
        _say("Anything else is sent as a question; type //word to send one that begins with /word.")
        _say(
            "In a terminal, Alt+Enter, or Escape and then Enter, begins another line; several lines that are "
            "pasted are one question. Up finds earlier questions, Ctrl+R searches them, Tab completes."
        )

    def _new(self, _: str) -> None:
        self._target.start_conversation()
        _say("A new conversation.")

    def _model(self, name: str) -> None:
        if name:
            self._target.switch_model(name)
        plan = self._target.session.plan
        assert plan is not None
        _say(f"{'Switched to' if name else 'The model is'} {one_line(plan.model_name, 60)}.")

    def _retry(self, _: str) -> None:
        self._target.retry()

    def _continue(self, _: str) -> None:
        self._target.continue_reply()

    def _attach(self, path: str) -> None:
        _say(f"{one_line(self._target.attach_file(path).name, 60)} will be sent with the next question.")

    def _image(self, path: str) -> None:
        image = self._target.attach_image(path)
        _say(f"{one_line(image.name, 60)}, {image.size} pixels, will be sent with the next question.")

    def _rename(self, title: str) -> None:
        self._wait_for(self._stored().rename(title))
        _say(f"Renamed to “{one_line(title, 60)}”.")

    def _pin(self, _: str) -> None:
        conversation = self._stored()
        pinned = not conversation.chat.pinned
        self._wait_for(conversation.pin(pinned))
        _say("Pinned to the top of the list." if pinned else "No longer pinned.")

    def _export(self, name: str) -> None:
        _say(f"Written to {one_line(str(files.export_to_file(self._stored(), name)), 300)}")

    def _import(self, name: str) -> None:
        new = parse_chat(files.read(name))
        self._wait_for(add_chat(self._target.store, new))
        self._open(new.chat.id)

    def _delete(self, _: str) -> None:
        target, chat = self._target, self._stored().chat
        self._wait_for(target.store.trash(chat.id))
        target.start_conversation()
        target.session.forget(chat.id)
        way_back = f" To restore it within {TRASH_DAYS} days: edgechat chats restore {chat.id[:8]}"
        _say(f"Deleted “{_title(chat)}”.{way_back if target.store.lasting else ''}")

    def _stored(self) -> Conversation:
        if not self._target.conversation.n_messages:
            raise EdgechatError("This conversation is empty.", hint="Send a message first.")
        return self._target.conversation

    def _chats(self, _: str = "") -> None:
        chats = self._wait_for(self._target.store.listed(_MOST_LISTED + 1))
        if not chats:
            _say("There are no conversations yet.")
        for listed in chats[:_MOST_LISTED]:
            when = ago(time.time() - listed.chat.updated_at)
            _say(f"{listed.prefix}: {_title(listed.chat)}, {counted(listed.n_messages)}, {when}.")
        if len(chats) > _MOST_LISTED:
            _say("There are more; to list them: edgechat chats")

    def _open(self, prefix: str) -> None:
        target = self._target
        chat = self._wait_for(target.store.find(prefix))
        conversation = self._wait_for(target.session.open(chat.id))
        if conversation.written_elsewhere:
            raise ChatBusy(
                f"Another edgechat is generating an answer in the conversation {conversation.chat.title!r}.",
                hint="Wait until it has finished, or open another conversation.",
            )
        target.continue_conversation(conversation)
        _say(f"Continuing: {_title(conversation.chat)} ({counted(conversation.n_messages)}).")
        for turn in [turn for turn in conversation.turns if turn.role != "system"][-2:]:
            speaker = "You said" if turn.role == "user" else "The answer was"
            _say(f"{speaker}: {printable(turn.content).strip() or 'nothing'}")

    def _search(self, text: str) -> None:
        if not text:  # an empty text would match every conversation
            self._chats()
            return
        hits = self._wait_for(self._target.store.search(text, _MOST_LISTED))
        if not hits:
            _say(f"No message contains {one_line(text, 60)!r}.")
        for hit in hits:
            _say(f"{hit.chat.id[:8]}: {_title(hit.chat)}, {_place(hit)}: {one_line(hit.snippet)}")
        if hits:
            _say("To continue one of these: /open ID")

    def _quit(self, _: str) -> None:
        self._target.ended = True


def _title(chat: Chat) -> str:
    return one_line(chat.title, 60)


def _place(hit: Hit) -> str:
    if not hit.turn_id:
        return "in its title"
    return {"user": "you", "assistant": "the answer"}.get(hit.role, "the system prompt")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
