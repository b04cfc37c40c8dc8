"""The prompt with what belongs to it: completions above it, attachments, and the box."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from edgechat.base.errors import AttachmentError, EdgechatError
from edgechat.chat import attachments as files
from edgechat.chat.attachments import MOST
from edgechat.chat.commands import parse_command
from edgechat.tui.chat.prompt.attachments import Chips
from edgechat.tui.chat.prompt.box import PromptBox
from edgechat.tui.chat.prompt.completions import (
    Completions,
    command_suggestions,
    file_suggestions,
    path_at_end,
)
from edgechat.tui.chat.prompt.waiting import WaitingQuestions
from edgechat.tui.widgets.text_area import Area

if TYPE_CHECKING:
    from edgechat.chat.records import Attachment

Arguments = Callable[[str], Sequence[tuple[str, str]]]


class PromptPane(Vertical):
    """Where a question is written. What is sent comes as `Asked`, a command as `Commanded`."""

    DEFAULT_CSS = """
    PromptPane { height: auto; }
    """

    @dataclass
    class Asked(Message):
        """A question, with its attachments."""

        text: str
        attachments: tuple[Attachment, ...]

    @dataclass
    class Commanded(Message):
        """A command."""

        name: str
        argument: str

    @dataclass
    class AttachFailed(Message):
        """A file cannot be attached."""

        error: EdgechatError

    class Changed(Message):
        """The prompt has changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.arguments: Arguments = lambda _name: ()
        """From a command's name to its possible arguments, each with a short description."""
        self.attachments: list[Attachment] = []
        self._completions = Completions()

    def compose(self) -> ComposeResult:
        yield WaitingQuestions()
        yield self._completions
        yield Chips()
        yield PromptBox(self._completions, self._update_completions, id="prompt")

    @property
    def box(self) -> PromptBox:
        return self.query_one(PromptBox)

    @property
    def text(self) -> str:
        return self.box.text

    @property
    def unsent(self) -> str:
        return self.box.unsent

    def put(self, text: str, attachments: Sequence[Attachment], title: str = "") -> None:
        """Hold this, in place of what was there. title: shown above the box."""
        self.fill(text)
        self._set_attachments(list(attachments))
        self.box.border_title = title
        self.screen.refresh_bindings()

    def fill(self, text: str) -> None:
        self.box.fill(text)

    def quote(self, text: str) -> None:
        self.box.quote(text)

    def remember(self, questions: Sequence[str]) -> None:
        self.box.remember(questions)

    def forget_history(self) -> None:
        self.box.forget_history()

    def take_focus(self) -> None:
        self.box.focus()

    def show_waiting(self, questions: Sequence[str]) -> None:
        self.query_one(WaitingQuestions).show(questions)
        self.box.has_waiting = bool(questions)

    def attach(self, attachment: Attachment) -> None:
        if attachment in self.attachments:
            return
        if len(self.attachments) >= MOST:
            error = AttachmentError(
                f"A question can have at most {MOST} attachments.", hint="Send these first."
            )
            self.post_message(self.AttachFailed(error))
        else:
            self._set_attachments([*self.attachments, attachment])

    @work(group="attach")
    async def attach_file(self, path: str) -> None:
        try:
            self.attach(await asyncio.to_thread(files.read, path))
        except AttachmentError as error:
            self.post_message(self.AttachFailed(error))

    def _set_attachments(self, attachments: list[Attachment]) -> None:
        self.attachments = attachments
        self.query_one(Chips).show(attachments)
        self.post_message(self.Changed())

    # Sending.

    @on(PromptBox.Submitted)
    def _submit(self, event: PromptBox.Submitted) -> None:
        event.stop()
        command = parse_command(event.text)
        if command is not None:
            self.post_message(self.Commanded(*command))
        else:
            asked = self.Asked(event.text, tuple(self.attachments))
            self._set_attachments([])
            self.post_message(asked)

    # Completing.

    @on(Area.Changed)
    @on(Area.SelectionChanged)
    def _update_completions(self) -> None:
        box = self.box
        before = box.text_before
        path = path_at_end(before)
        if box.text.startswith("/") and box.cursor_location == box.document.end:
            self._completions.show(command_suggestions(box.text, self.arguments), before)
        elif path is not None and not box.selected_text:
            self._complete_path(path, before)
        else:
            self._completions.show((), before)

    @on(Area.Changed)
    def _changed(self) -> None:
        self.post_message(self.Changed())

    @work(exclusive=True, group="complete")
    async def _complete_path(self, path: str, before: str) -> None:
        suggestions = await asyncio.to_thread(file_suggestions, path, len(before) - len(path) - 1)
        if self.box.text_before == before:
            others = [suggestion for suggestion in suggestions if suggestion.text.strip() != f"@{path}"]
            self._completions.show(others, before)

    @on(Completions.Clicked)
    def _accept_clicked(self) -> None:
        self.box.accept()
        self.box.focus()

    # Attaching.

    @on(PromptBox.Pasted)
    @work(group="attach")
    async def _handle_paste(self, event: PromptBox.Pasted) -> None:
        paths = await asyncio.to_thread(files.dropped, event.text)
        for path in paths:
            self.attach_file(path)
        if paths:
            return
        if files.is_long(event.text):
            number = 1 + sum(attached.name.startswith("pasted") for attached in self.attachments)
            self.attach(files.of_text(f"pasted text {number}" if number > 1 else "pasted text", event.text))
        else:
            await self.box.insert_paste(event.text)

    @on(PromptBox.BackspaceInEmpty)
    def _remove_last_attachment(self) -> None:
        if self.attachments:
            self._set_attachments(self.attachments[:-1])

    @on(Chips.Removed)
    def _remove_attachment(self, event: Chips.Removed) -> None:
        self._set_attachments(self.attachments[: event.number] + self.attachments[event.number + 1 :])
