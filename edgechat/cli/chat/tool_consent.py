"""Consent to tool calls, either requested in the terminal or given on the command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from edgechat.chat.reply.calls import hints, tool_name
from edgechat.tools.consent import Answer, NamedPermission, Permission, Question
from edgechat.tools.tool import ToolSpec

_ANSWERS: dict[str, Answer] = {
    "o": "once",
    "once": "once",
    "c": "chat",
    "chat": "chat",
    "a": "always",
    "always": "always",
    "": "no",
    "n": "no",
    "no": "no",
    "v": "never",
    "never": "never",
}
_CHOICES = "o: once, c: always in this chat, a: always, n: no, v: never"


def can_ask() -> bool:
    """Return whether there is a user who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def unknown_names(names: Sequence[str], chosen: Collection[str]) -> list[str]:
    """Return the names given to `--yes` that do not belong to any selected tool server."""
    servers = {name.partition(":")[0] for name in chosen}
    return [name for name in names if name.partition("/")[0].partition("__")[0] not in servers]


@dataclass(frozen=True, slots=True)
class CommandLinePermission:
    """Allows the tools named by `--yes`; for other tools, asks the user if possible, or else refuses."""

    names: Sequence[str]
    asking: Permission | None

    async def __call__(self, tool: ToolSpec, arguments: str) -> bool:
        """See `Permission`."""
        if await NamedPermission(self.names)(tool, arguments):
            return True
        return self.asking is not None and await self.asking(tool, arguments)


class TerminalQuestions:
    """Passes questions from a reply to the main thread, where `input` and Ctrl+C work."""

    def __init__(self) -> None:
        self._queue = SimpleQueue[tuple[Question, Future[Answer]] | None]()

    async def ask(self, question: Question) -> Answer:
        """Ask the user and return the answer. Called on the event loop."""
        answer = Future[Answer]()
        self._queue.put((question, answer))
        return await asyncio.wrap_future(answer)

    def answer_until_done(self, reply: Future[None]) -> None:
        """Ask questions as they arrive, until the reply ends."""
        reply.add_done_callback(lambda _: self._queue.put(None))
        while (asked := self._queue.get()) is not None:
            question, answer = asked
            given = ask_in_terminal(question)
            with suppress(InvalidStateError):  # canceled in the meantime
                answer.set_result(given)


def ask_in_terminal(question: Question) -> Answer:
    """Show a tool call in full and return the user's answer, which is "no" at the end of input."""
    print("\n".join(lines_of(question)), file=sys.stderr)
    while True:
        print(f"Allow it? {_CHOICES}: ", end="", file=sys.stderr, flush=True)
        try:
            typed = input().strip().lower()
        except EOFError:
            return "no"
        if typed in _ANSWERS:
            return _ANSWERS[typed]


def lines_of(question: Question) -> list[str]:
    """Return a question as lines to print."""
    lines = [f"The model wants to call {tool_name(question.tool)}", hints(question.tool), "Arguments:"]
    lines += [f"  {line}" for line in question.arguments.split("\n")]
    if question.changed:
        lines.append("The tool has changed since you allowed it:")
        lines += [f"  {line}" for line in question.changed.split("\n")]
    return lines
