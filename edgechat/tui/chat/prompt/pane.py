"""Prompt pane: the prompt box with waiting questions, completions and attachments above it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from edgechat.base.errors import AttachmentError, EdgechatError, ImageError
from edgechat.chat.attachments import (
    MOST,
    bytes_named_in,
    dropped,
    is_image,
    is_long,
    keep_image,
    of_text,
    read,
    read_image,
    without_mention,
)
from edgechat.chat.commands import parse_command
from edgechat.tui.chat.prompt.above import Chips, Completions, WaitingQuestions, chip_of
from edgechat.tui.chat.prompt.box import PromptBox
from edgechat.tui.chat.prompt.files import FileFinder, NamedFiles, TypedPath, command_suggestions, path_at_end
from edgechat.tui.widgets.fields import Area

if TYPE_CHECKING:
    from edgechat.base.images.image import ImageLibrary
    from edgechat.chat.records import AttachedImage, Attachment


Arguments = Callable[[str], Sequence[tuple[str, str]]]

_WEIGH_AFTER = 0.3
"""Seconds after the last change before the prompt's size is estimated."""


class PromptPane(Vertical):
    """Pane for writing a question. Posts `Asked` for a question, and `Commanded` for a command."""

    DEFAULT_CSS = """
    PromptPane { height: auto; }
    """

    @dataclass
    class Asked(Message):
        """The user asked a question, with its attachments."""

        text: str
        attachments: tuple[Attachment, ...]
        images: tuple[AttachedImage, ...]

    @dataclass
    class Commanded(Message):
        """The user entered a command."""

        name: str
        argument: str

    @dataclass
    class AttachFailed(Message):
        """A file could not be attached."""

        error: EdgechatError

    class Changed(Message):
        """The prompt has changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.arguments: Arguments = lambda _name: ()
        """Function that returns a command's possible arguments, each with a short description."""
        self.attachments: list[Attachment] = []
        self.images: list[AttachedImage] = []
        self.library: Callable[[], Awaitable[ImageLibrary]] | None = None
        """Function that opens the image library."""
        self.notice: Callable[[int, bool], str] = lambda _n, _has_images: ""
        """Function that returns a note about a question of n tokens, with or without images."""
        self._weighing: asyncio.TimerHandle | None = None
        self._cleared: tuple[list[Attachment], list[AttachedImage]] = ([], [])
        """The attachments that undo would restore."""
        self._named = NamedFiles()
        self._completions = Completions()
        self._finder = FileFinder()

    def compose(self) -> ComposeResult:
        yield WaitingQuestions()
        yield self._completions
        yield Chips()
        yield PromptBox(self._completions, self._update_completions, id="prompt")

    @property
    def box(self) -> PromptBox:
        return self.query_one(PromptBox)

    def put(
        self,
        text: str,
        attachments: Sequence[Attachment],
        images: Sequence[AttachedImage] = (),
        title: str = "",
    ) -> None:
        self.box.fill(text)
        self._set_attached(attachments, images)
        self.box.border_title = title
        self.screen.refresh_bindings()

    def clear(self) -> bool:
        """Remove the text and attachments, and return whether there were any. Undo restores them."""
        if not (self.box.text or self.attachments or self.images):
            return False
        self._cleared = self.attachments, self.images
        self.box.clear_draft()
        self._set_attached((), ())
        return True

    @on(PromptBox.ClearUndone)
    def _restore_attachments(self) -> None:
        attachments, images = self._cleared
        self._set_attached([*attachments, *self.attachments], [*images, *self.images])

    def show_waiting(self, questions: Sequence[str]) -> None:
        self.query_one(WaitingQuestions).show(questions)
        self.box.has_waiting = bool(questions)

    def attach(self, attached: Attachment | AttachedImage) -> None:
        from edgechat.chat.records import AttachedImage  # not needed for the first frame

        if attached in (*self.attachments, *self.images):
            return
        if len(self.attachments) + len(self.images) >= MOST:
            raise AttachmentError(
                f"A question can have at most {MOST} attachments.", hint="Send these first."
            )
        if isinstance(attached, AttachedImage):
            self._set_attached(self.attachments, [*self.images, attached])
        else:
            self._set_attached([*self.attachments, attached], self.images)

    async def attach_file(self, path: str) -> None:
        """Attach a file, or a listing of a folder. Raises AttachmentError and ImageError."""
        if is_image(path):
            await self.attach_image(path)
        else:
            self.attach(await asyncio.to_thread(read, path))

    async def attach_image(self, path: str) -> None:
        """Attach an image. Raises AttachmentError and ImageError."""
        assert self.library is not None
        self.attach(await asyncio.to_thread(read_image, await self.library(), path))

    def _set_attached(self, attachments: Sequence[Attachment], images: Sequence[AttachedImage]) -> None:
        self.attachments, self.images = list(attachments), list(images)
        self._show_chips()
        self._changed()

    def _show_chips(self) -> None:
        attached = [*map(chip_of, self.images), *map(chip_of, self.attachments)]
        self.query_one(Chips).show([*attached, *self._named.chips(self.images)])

    # The note in the box's frame.

    @work(exclusive=True, group="weigh")
    async def weigh(self) -> None:
        """Show the prompt's estimated reading time if it is long."""
        from edgechat.engine.prompt.window import guessed_tokens
        from edgechat.tui.chat.prompt.reading_time import tokens_of

        text = self.box.text
        await self._look_for_named(text)
        named = await asyncio.to_thread(bytes_named_in, text) if "@" in text else 0
        n = guessed_tokens(len(text.encode("utf-8", "replace")) + named)
        n += sum(map(tokens_of, self.attachments))
        has_images = bool(self.images or self._named.found)
        self.box.border_subtitle = self.notice(n, has_images) if n or has_images else ""

    async def _look_for_named(self, text: str) -> None:
        """Show the images and folders named in the text, which are attached when it is sent."""
        if self.library is not None and ("@" in text or self._named.found or self._named.folders):
            await self._named.update(text, self.library)
            self._show_chips()

    # Sending.

    @on(PromptBox.Submitted)
    async def _submit(self, event: PromptBox.Submitted) -> None:
        event.stop()
        command = parse_command(event.text)
        if command is not None:
            self.post_message(self.Commanded(*command))
        else:
            # Files dropped before Enter belong to the question, no matter how long reading them takes.
            attaching = [one for one in self.workers if one.node is self and one.group == "attach"]
            await asyncio.gather(*(one.wait() for one in attaching), return_exceptions=True)
            asked = self.Asked(event.text, tuple(self.attachments), tuple(self.images))
            self._named.clear()
            self._set_attached((), ())
            self.post_message(asked)

    # Completing.

    @on(Area.Changed)
    @on(Area.SelectionChanged)
    def _update_completions(self) -> None:
        box = self.box
        before = box.text_before
        path = path_at_end(before)
        if path is not None and not box.selected_text:
            self._complete_path(path, before)
        elif box.text.startswith("/") and box.cursor_location == box.document.end:
            self._completions.show(command_suggestions(box.text, self.arguments), before)
        else:
            self._completions.show((), before)

    @on(Area.Changed)
    def _changed(self) -> None:
        self.post_message(self.Changed())
        if self._weighing is not None:
            self._weighing.cancel()
        loop = asyncio.get_running_loop()
        self._weighing = loop.call_later(_WEIGH_AFTER, self.call_later, self.weigh)

    @work(exclusive=True, group="complete")
    async def _complete_path(self, path: TypedPath, before: str) -> None:
        suggestions = await asyncio.to_thread(self._finder.suggestions, path)
        if self.box.text_before == before:
            self._completions.show(suggestions, before)

    @on(Completions.Clicked)
    def _accept_clicked(self) -> None:
        self.box.accept()
        self.box.focus()

    # Attaching.

    @on(PromptBox.Pasted)
    @work(group="attach")
    async def _handle_paste(self, event: PromptBox.Pasted) -> None:
        try:
            paths = await asyncio.to_thread(dropped, event.text)
            for path in paths:
                await self.attach_file(path)
            if not paths and is_long(event.text):
                number = 1 + sum(attached.name.startswith("pasted") for attached in self.attachments)
                self.attach(of_text(f"pasted text {number}" if number > 1 else "pasted text", event.text))
            elif not paths:
                self.box.insert_paste(event.text)
        except (AttachmentError, ImageError) as error:
            self.post_message(self.AttachFailed(error))
        finally:
            event.release()

    @on(PromptBox.WantsClipboard)
    @work(group="attach")
    async def _paste_clipboard(self, event: PromptBox.WantsClipboard) -> None:
        """Attach the image on the system clipboard, or else insert the text copied in the app."""
        from edgechat.tui.terminal.programs import image_on_clipboard

        end = self.app.keys.hold()  # type: ignore[attr-defined]
        try:
            data = await image_on_clipboard()
            if data is not None and self.library is not None:
                number = 1 + sum(image.name.startswith("clipboard") for image in self.images)
                name = f"clipboard {number}.png" if number > 1 else "clipboard.png"
                self.attach(await asyncio.to_thread(keep_image, await self.library(), data, name))
            elif event.or_text:
                self.box.paste_copied()
        except (AttachmentError, ImageError) as error:
            self.post_message(self.AttachFailed(error))
        finally:
            end()

    @on(PromptBox.BackspaceInEmpty)
    def _remove_last(self) -> None:
        n = len(self.images) + len(self.attachments)
        if n:
            self._remove(Chips.Removed(n - 1))

    @on(Chips.Removed)
    def _remove(self, event: Chips.Removed) -> None:
        """Remove a chip's attachment. The chips show images, then texts, then files named in the text."""
        images, attachments, at = self.images, self.attachments, event.number
        if at < len(images):
            self._set_attached(attachments, images[:at] + images[at + 1 :])
        elif (at := at - len(images)) < len(attachments):
            self._set_attached(attachments[:at] + attachments[at + 1 :], images)
        else:
            path = self._named.shown(images)[at - len(attachments)].path
            self.box.replace_text(without_mention(self.box.text, path))
