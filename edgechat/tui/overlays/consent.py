"""Consent dialog: shows a tool call made by the model, and asks whether to allow it."""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static

from edgechat.base.text import one_line
from edgechat.chat.reply.calls import hints, tool_name
from edgechat.tools.consent import Answer, Question
from edgechat.tui.widgets.dialogs import AppDialog
from edgechat.tui.widgets.lists import KeyedList, ListLine

_ANSWERS: dict[Answer, tuple[str, str]] = {
    "once": ("o", "Once"),
    "chat": ("c", "Always in this chat"),
    "always": ("a", "Always, in all chats"),
    "no": ("n", "No"),
    "never": ("v", "Never"),
}
_DIFF_STYLES = {"+": "$success", "-": "$error"}


class ConsentScreen(AppDialog[Answer | None]):
    """A dialog that returns the user's answer, or None to stop the reply.

    It may appear while the user is typing, so it accepts keys only after a pause.
    """

    DEFAULT_CSS = """
    ConsentScreen {
        & > .frame { border: round $warning; border-title-color: $warning; }
        & VerticalScroll { height: auto; max-height: 60vh; scrollbar-size-vertical: 1; }
        & KeyedList, & KeyedList:focus { height: 5; margin-top: 1; }
    }
    """
    AUTO_FOCUS = "KeyedList"
    QUIET_SECONDS: ClassVar[float] = 0.6
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"answer('{answer}')", text, show=False) for answer, (key, text) in _ANSWERS.items()),
        Binding("enter", "choose", "The answer at the cursor", show=False),
        Binding("escape", "stop", "Stop the answer", show=False),
        Binding("pageup", "scroll(-1)", "Scroll up", show=False, priority=True),
        Binding("pagedown", "scroll(1)", "Scroll down", show=False, priority=True),
    ]

    def __init__(self, question: Question, chat: str = "") -> None:
        """chat: the conversation's title, or '' if the conversation is on screen."""
        super().__init__()
        self._question = question
        self._chat = one_line(chat, 50)
        self._withdrawn = False
        self._quiet_since = 0.0

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as box:
            with VerticalScroll(can_focus=False):
                yield Static(self._text())
            yield KeyedList()
        box.border_title = Content("May the model call this?" + f" In “{self._chat}”" * bool(self._chat))
        box.border_subtitle = "Enter or a letter answers · Esc stops the reply"

    def on_mount(self) -> None:
        self._quiet_since = time.monotonic()
        lines = [
            ListLine(Content.assemble((key, "bold"), f"  {text}"), answer)
            for answer, (key, text) in _ANSWERS.items()
        ]
        self.query_one(KeyedList).show_lines(lines)

    def withdraw(self) -> None:
        """Close the dialog, now or when it is next on top; the answer is no longer needed."""
        self._withdrawn = True
        self._close_if_withdrawn()

    @on(events.ScreenResume)
    def _close_if_withdrawn(self) -> None:
        if self._withdrawn and self.app.screen is self:
            self._withdrawn = False
            self.dismiss(None)

    def on_key(self, event: events.Key) -> None:
        """Count keys that do nothing here as typing, too."""
        self._is_quiet()

    def _is_quiet(self) -> bool:
        """Return whether this key came after a pause."""
        now = time.monotonic()
        was_quiet = now - self._quiet_since >= self.QUIET_SECONDS
        if not was_quiet:
            self._quiet_since = now
        return was_quiet

    @on(OptionList.OptionSelected)
    def action_choose(self) -> None:
        answer = next((answer for answer in _ANSWERS if answer == self.query_one(KeyedList).key), None)
        if answer is not None:
            self.action_answer(answer)

    def action_answer(self, answer: Answer) -> None:
        if self._is_quiet():
            self.dismiss(answer)

    def action_stop(self) -> None:
        if self._is_quiet():
            self.dismiss(None)

    def _text(self) -> Content:
        question = self._question
        parts: list[Content | str | tuple[str, str]] = [(tool_name(question.tool), "bold")]
        if question.tool.title:
            parts.append(f"  {one_line(question.tool.title, 80)}")
        parts.append((f"\n{hints(question.tool)}\n", "dim"))
        if question.changed:
            parts.append(("\nIt has changed since you allowed it:\n", "bold $warning"))
            lines = question.changed.split("\n")
            parts += [(f"{line}\n", _DIFF_STYLES.get(line[:1], "dim")) for line in lines]
        parts += [("\nArguments\n", "bold"), (question.arguments, "$secondary")]
        if question.tool.description:
            parts += [("\n\nWhat the tool says about itself\n", "bold"), (question.tool.description, "dim")]
        return Content.assemble(*parts)


async def ask_consent(app: App[Any], question: Question, chat: str) -> Answer | None:
    """Ask whether to allow a tool call; see `ConsentScreen`. Cancelling this call withdraws the question."""
    screen = ConsentScreen(question, chat)
    answered = asyncio.get_running_loop().create_future()
    await app.push_screen(screen, answered.set_result)
    try:
        return await asyncio.shield(answered)
    finally:
        if not answered.done():
            screen.withdraw()
