"""The commands that can be typed in a conversation on the command line: /help and the others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgechat.chat.commands import check, commands_of, parsed
from edgechat.chat.conversation import Conversation
from edgechat.chat.export import counted
from edgechat.chat.records import Chat, Hit
from edgechat.errors import ChatBusy
from edgechat.text import ago, one_line, printable

if TYPE_CHECKING:
    from edgechat.cli.chat.chat_loop import ChatLoop

_SOME = 20


class SlashCommands:
    """Does what the commands say. They write to stderr, as all does that is no answer."""

    def __init__(self, talker: ChatLoop) -> None:
        self.ended = False
        self._talker = talker

    def obeys(self, line: str) -> bool:
        """Do what a line says if it is a command; say whether it is one. Raises EdgechatError."""
        found = parsed(line)
        if found is None:
            return False
        name, argument = found
        check(name, argument, "run")
        handler: Callable[[str], None] = getattr(self, f"_{name}")
        handler(argument)
        return True

    def _help(self, _: str) -> None:
        for command in commands_of("run"):
            _say(f"{command.usage}: {command.description}.")
        _say("Anything else is sent as a question; type //word to send one that begins with /word.")

    def _new(self, _: str) -> None:
        self._talker.begin()
        _say("A new conversation.")

    def _model(self, name: str) -> None:
        if name:
            self._talker.use_model(name)
            _say(f"Switched to {one_line(self._talker.engine.plan.model_name)}.")
        else:
            _say(f"The model is {one_line(self._talker.engine.plan.model_name)}.")

    def _chats(self, _: str = "") -> None:
        talker = self._talker
        found = talker.background.run(talker.store.listed(_SOME + 1))
        if not found:
            _say("There are no conversations yet.")
        for one in found[:_SOME]:
            when = ago(time.time() - one.chat.updated_at)
            _say(f"{one.prefix}: {_title(one.chat)}, {counted(one.n_messages)}, {when}.")
        if len(found) > _SOME:
            _say("There are more; to list them: edgechat chats")

    def _open(self, prefix: str) -> None:
        talker = self._talker
        talk = talker.background.run(self._loaded(prefix))
        talker.go_on_with(talk)
        _say(f"Continuing: {_title(talk.chat)} ({counted(talk.n_messages)}).")
        last = [turn for turn in talk.turns if turn.role != "system"][-2:]
        for turn in last:
            who = "You said" if turn.role == "user" else "The answer was"
            _say(f"{who}: {printable(turn.content).strip() or 'nothing'}")

    async def _loaded(self, prefix: str) -> Conversation:
        talker = self._talker
        talk = await talker.session.open((await talker.store.find(prefix)).id)
        if talk.being_written:
            raise ChatBusy(
                f"Another edgechat is generating an answer in the conversation {talk.chat.title!r}.",
                hint="Wait until it has finished, or open another conversation.",
            )
        return talk

    def _search(self, text: str) -> None:
        if not text:  # every conversation matches
            self._chats()
            return
        talker = self._talker
        found = talker.background.run(talker.store.search(text, _SOME))
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
