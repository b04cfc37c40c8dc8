"""One setting on the screen: its name, value and description, and the editor of the value."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.css.query import NoMatches
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Static

from edgechat.base.errors import EdgechatError
from edgechat.base.text import printable
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.modalities import ModelKind
from edgechat.tui.settings.entries import SettingEntry
from edgechat.tui.widgets.fields import Area, LineField

_KINDS: dict[tuple[str, ...], ModelKind] = {
    ("model",): "chat",
    ("draft",): "chat",
    ("embedding_model",): "embedding",
    ("reranking_model",): "reranking",
}
"""Settings that name a model, and of which kind."""


class LineEditor(LineField):
    """A value in one line. Enter saves, Escape cancels."""

    DEFAULT_CSS = """
    LineEditor, LineEditor:focus {
        height: 3; border: round $primary; padding: 0 1;
        background: $background; background-tint: transparent;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    async def action_submit(self) -> None:
        self.post_message(SettingRow.TextEntered(self.value))

    def action_cancel(self) -> None:
        self.post_message(SettingRow.EditCancelled())

    def on_blur(self) -> None:
        if self.app.app_focus:  # not if the terminal itself has lost the focus
            self.post_message(SettingRow.EditorLeft(self.value))


class TextEditor(Area):
    """A value of several lines. Ctrl+S saves, Escape cancels."""

    DEFAULT_CSS = """
    TextEditor, TextEditor:focus {
        height: auto; max-height: 10; border: round $primary; padding: 0 1; background: $background;
        & .text-area--cursor-line { background: $background; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "submit", "Save"),
        Binding("escape", "cancel", "Cancel"),
    ]

    def action_submit(self) -> None:
        self.post_message(SettingRow.TextEntered(self.text))

    def action_cancel(self) -> None:
        self.post_message(SettingRow.EditCancelled())

    def on_blur(self) -> None:
        if self.app.app_focus:
            self.post_message(SettingRow.EditorLeft(self.text))


class SettingRow(Vertical, can_focus=True):
    """A setting. It posts a value that the user has chosen or typed as `Chosen`; the screen writes it."""

    DEFAULT_CSS = """
    SettingRow {
        height: auto; padding: 0 1 0 2; margin: 1 0;
        &:focus, &:focus-within { border-left: outer $primary; padding-left: 1; background: $surface; }
        & > Static { height: auto; }
        & > .row--head { height: auto; }
        & .row--label { width: 20; }
        & .row--value { width: 1fr; height: auto; }
        &:focus .row--label { text-style: bold; }
        & > .row--doc { text-style: dim; padding-left: 2; }
        & > .row--fault { color: $error; padding-left: 2; display: none; }
        & > LineEditor, & > TextEditor { margin: 0 2; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "edit", "Change"),
        Binding("left", "step(-1)", "Previous value", show=False),
        Binding("right", "step(1)", "Next value", show=False),
        Binding("delete,backspace", "reset", "Default"),
    ]

    @dataclass
    class Chosen(Message):
        """A value to write; None for the default."""

        row: SettingRow
        value: Any

        @property
        def control(self) -> SettingRow:
            return self.row

    class EditCancelled(Message):
        """Escape was pressed in an editor."""

    @dataclass
    class TextEntered(Message):
        """A text is to be saved."""

        text: str

    @dataclass
    class EditorLeft(Message):
        """The editor has lost the focus, with this text in it."""

        text: str

    def __init__(self, entry: SettingEntry, value: Any, *, override: str = "") -> None:
        """value: the one in the file, or None. override: what applies instead, and why."""
        super().__init__()
        self.entry = entry
        self.value = value
        self._override = override

    def compose(self) -> ComposeResult:
        with Horizontal(classes="row--head"):
            yield Static(self.entry.label, classes="row--label", markup=False)
            yield Static(classes="row--value", markup=False)
        yield Static(classes="row--fault", markup=False)
        yield Static(self.entry.description, classes="row--doc", markup=False)

    def on_mount(self) -> None:
        self._show_value()

    def update(self, value: Any) -> None:
        """Show another value."""
        self.value = value
        self.show_fault("")
        self._show_value()

    def show_fault(self, fault: str) -> None:
        """Show what is wrong below the value; '' if nothing is."""
        line = self.query_one(".row--fault", Static)
        line.display = bool(fault)
        line.update(Content(printable(f"! {fault}") if fault else ""))

    @property
    def editor(self) -> Widget | None:
        """The widget in which the value is being changed, if it is."""
        try:
            return self.query_one(f"{LineEditor.__name__}, {TextEditor.__name__}")
        except NoMatches:
            return None

    @on(events.Focus)
    @on(events.Blur)
    def _focus_changed(self) -> None:
        if self.entry.choices:
            self._show_value()

    def _show_value(self) -> None:
        entry = self.entry
        if self.value is None:
            text = Content.styled(f"default: {entry.default}", "dim")
        else:
            text = Content.styled(entry.format(self.value), "bold")
        if self.has_focus and entry.choices:
            text = Content.assemble("‹ ", text, " ›")
        if self._override:
            text = Content.assemble(text, (f"  now {self._override}", "bold"))
        self.query_one(".row--value", Static).update(text)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to the editor while it is open."""
        return self.editor is None

    def on_click(self, event: events.Click) -> None:
        if self.editor is None and event.chain == 2:  # the first click has focused the row
            self.action_edit()

    def action_edit(self) -> None:
        """Take the next of the allowed values, or open an editor."""
        if self.editor is not None or not self.is_attached:  # the screen may have been left
            return
        if self.entry.editor == "choice":
            self.action_step(1)
            return
        text = "" if self.value is None else printable(str(self.value))
        if isinstance(self.value, list):
            text = ", ".join(map(str, self.value))
        editor: LineEditor | TextEditor
        if self.entry.editor == "text":
            editor = TextEditor(text, highlight_cursor_line=False)
            editor.border_subtitle = "Ctrl+S saves · Esc cancels"
        else:
            placeholder = f"{self.entry.kind}; empty: the default"
            editor = LineEditor(
                text, placeholder=placeholder, select_on_focus=False, suggester=self._suggester
            )
            editor.border_subtitle = "Enter saves · Esc cancels"
        self.mount(editor, after=self.query_one(".row--head"))
        editor.focus()
        self.call_after_refresh(self.scroll_visible)

    @property
    def _suggester(self) -> SuggestFromList | None:
        kind = _KINDS.get(self.entry.path)
        if kind is None:
            return None
        with contextlib.suppress(EdgechatError):
            words = ["mtp", "ngram"] if self.entry.path == ("draft",) else []
            names = [model.name for model in catalogue() if model.kind == kind]
            return SuggestFromList([*words, *names], case_sensitive=False)
        return None

    def action_step(self, by: int) -> None:
        """Take the allowed value before (-1) or after (1) this one."""
        choices = self.entry.choices
        if not choices or self.editor is not None:
            return
        value = self.value
        if value not in choices:  # the default applies
            values = {self.entry.format(choice): choice for choice in choices if choice is not None}
            value = values.get(self.entry.default)
        index = choices.index(value) if value in choices else -by
        self.post_message(self.Chosen(self, choices[(index + by) % len(choices)]))

    def action_reset(self) -> None:
        """Remove the setting from the file."""
        if self.editor is None and self.value is not None:
            self.post_message(self.Chosen(self, None))

    @on(LineField.Changed)
    @on(Area.Changed)
    def _check(self, event: LineField.Changed | Area.Changed) -> None:
        event.stop()
        text = event.value if isinstance(event, LineField.Changed) else event.text_area.text
        try:
            self.entry.parse(text)
        except ValueError as error:
            self.show_fault(str(error))
        else:
            self.show_fault("")

    @on(TextEntered)
    def _text_entered(self, event: TextEntered) -> None:
        event.stop()
        try:
            value = self.entry.parse(event.text)
        except ValueError as error:
            self.show_fault(str(error))
        else:
            self.post_message(self.Chosen(self, value))

    @on(EditCancelled)
    async def _edit_cancelled(self, event: EditCancelled) -> None:
        event.stop()
        self.show_fault("")
        await self.close_editor()

    @on(EditorLeft)
    async def _editor_left(self, event: EditorLeft) -> None:
        event.stop()
        if self.editor is None or self.editor.has_focus:
            return
        try:
            value = self.entry.parse(event.text)
        except ValueError:
            value = self.value
        if value != self.value:
            self.post_message(self.Chosen(self, value))
        else:
            self.show_fault("")
            await self.close_editor()

    async def close_editor(self) -> None:
        """Remove the editor, and give its focus back to the row."""
        editor = self.editor
        if editor is not None:
            had_focus = editor.has_focus
            await editor.remove()
            if had_focus:
                self.focus()
