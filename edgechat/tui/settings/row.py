"""One setting on the screen: its name and value, what it does, and the place where it is changed."""

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
from edgechat.tui.settings.entries import SettingEntry
from edgechat.tui.widgets.line_field import LineField
from edgechat.tui.widgets.text_area import Area


class LineEditor(LineField):
    """A value in a line. Enter saves, Escape gives up."""

    DEFAULT_CSS = """
    LineEditor, LineEditor:focus {
        height: 3; border: round $primary; padding: 0 1;
        background: $background; background-tint: transparent;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "give_up", "Cancel")]

    def action_give_up(self) -> None:
        """Leave the value as it was."""
        self.post_message(SettingRow.GivenUp())

    def on_blur(self) -> None:
        """Save what was typed when someone goes on to another setting."""
        if self.app.app_focus:
            self.post_message(SettingRow.Left(self.value))


class TextEditor(Area):
    """A value of several lines. Ctrl+S saves, Escape gives up."""

    DEFAULT_CSS = """
    TextEditor, TextEditor:focus {
        height: auto; max-height: 10; border: round $primary; padding: 0 1; background: $background;
        & .text-area--cursor-line { background: $background; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "save", "Save"),
        Binding("escape", "give_up", "Cancel"),
    ]

    def action_save(self) -> None:
        """Hand the text over."""
        self.post_message(SettingRow.Entered(self.text))

    def action_give_up(self) -> None:
        """Leave the value as it was."""
        self.post_message(SettingRow.GivenUp())

    def on_blur(self) -> None:
        """Save what was typed when someone goes on to another setting."""
        if self.app.app_focus:
            self.post_message(SettingRow.Left(self.text))


class SettingRow(Vertical, can_focus=True):
    """A setting. What is chosen or typed comes out as `SettingRow.Chosen`; the screen writes it."""

    DEFAULT_CSS = """
    SettingRow {
        height: auto; padding: 0 1 0 2; margin-bottom: 1;
        &:focus, &:focus-within { border-left: outer $primary; padding-left: 1; }
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
            """The row it comes from."""
            return self.row

    class GivenUp(Message):
        """Escape was pressed in an editor."""

    @dataclass
    class Entered(Message):
        """A text is to be saved."""

        text: str

    @dataclass
    class Left(Message):
        """The editor has lost the focus, with this text in it."""

        text: str

    def __init__(self, entry: SettingEntry, given: Any, *, by: str = "") -> None:
        """given: what the file says, or None. by: what counts instead, and who says so."""
        super().__init__()
        self.entry = entry
        self.given = given
        self._by = by

    def compose(self) -> ComposeResult:
        """A line for the value, and below it what the setting does."""
        with Horizontal(classes="row--head"):
            yield Static(self.entry.label, classes="row--label", markup=False)
            yield Static(classes="row--value", markup=False)
        yield Static(classes="row--fault", markup=False)
        yield Static(self.entry.told, classes="row--doc", markup=False)

    def on_mount(self) -> None:
        """Show the value."""
        self._show()

    def update(self, given: Any) -> None:
        """Show another value."""
        self.given = given
        self.complain("")
        self._show()

    def complain(self, fault: str) -> None:
        """Show what is wrong, below the value; nothing for the empty text."""
        shown = self.query_one(".row--fault", Static)
        shown.display = bool(fault)
        shown.update(Content(printable(f"! {fault}") if fault else ""))

    @property
    def editor(self) -> Widget | None:
        """The widget in which the value is being changed, if it is."""
        try:
            return self.query_one(f"{LineEditor.__name__}, {TextEditor.__name__}")
        except NoMatches:
            return None

    def on_focus(self) -> None:
        """Show the arrows of a choice."""
        if self.entry.choices:
            self._show()

    def on_blur(self) -> None:
        """Show them no more."""
        if self.entry.choices:
            self._show()

    def _show(self) -> None:
        entry = self.entry
        if self.given is None:
            value = Content.styled(f"default: {entry.default}", "dim")
        else:
            value = Content.styled(entry.shown(self.given), "bold")
        if self.has_focus and entry.choices:
            value = Content.assemble("‹ ", value, " ›")
        if self._by:
            value = Content.assemble(value, (f"  now {self._by}", "bold"))
        self.query_one(".row--value", Static).update(value)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a value is typed, the row's keys belong to the text."""
        return self.editor is None

    def on_click(self, event: events.Click) -> None:
        """A click on a row goes there, a second one changes it."""
        if self.editor is None and event.chain == 2:
            self.action_edit()

    def action_edit(self) -> None:
        """Take the next value of a choice; else open an editor."""
        if self.editor is not None or not self.is_attached:  # the screen may have been left meanwhile
            return
        if self.entry.editor == "choice":
            self.action_step(1)
            return
        text = "" if self.given is None else self._text
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
        """What completes the name of a model."""
        if self.entry.path not in (("model",), ("draft",)):
            return None
        with contextlib.suppress(EdgechatError):
            return SuggestFromList([one.name for one in catalogue()], case_sensitive=False)
        return None

    @property
    def _text(self) -> str:
        return ", ".join(map(str, self.given)) if isinstance(self.given, list) else printable(str(self.given))

    def action_step(self, by: int) -> None:
        """Take the choice before or after this one."""
        choices = self.entry.choices
        if not choices or self.editor is not None:
            return
        now = self.given if self.given in choices else self._default
        at = choices.index(now) if now in choices else -by
        self.post_message(self.Chosen(self, choices[(at + by) % len(choices)]))

    @property
    def _default(self) -> Any:
        """The choice that counts where the file says nothing."""
        by_words = {self.entry.shown(one): one for one in self.entry.choices if one is not None}
        return by_words.get(self.entry.default)

    def action_reset(self) -> None:
        """Take the setting out of the file."""
        if self.editor is None and self.given is not None:
            self.post_message(self.Chosen(self, None))

    @on(LineField.Changed)
    @on(Area.Changed)
    def _check(self, event: LineField.Changed | Area.Changed) -> None:
        event.stop()
        text = event.value if isinstance(event, LineField.Changed) else event.text_area.text
        try:
            self.entry.parsed(text)
        except ValueError as error:
            self.complain(str(error))
        else:
            self.complain("")

    @on(LineField.Submitted)
    def _submitted(self, event: LineField.Submitted) -> None:
        event.stop()
        self._take(event.value)

    @on(Entered)
    def _entered(self, event: Entered) -> None:
        event.stop()
        self._take(event.text)

    def _take(self, text: str) -> None:
        try:
            value = self.entry.parsed(text)
        except ValueError as error:
            self.complain(str(error))
            return
        self.post_message(self.Chosen(self, value))

    @on(GivenUp)
    async def _given_up(self, event: GivenUp) -> None:
        event.stop()
        self.complain("")
        await self.close_editor()

    @on(Left)
    async def _left(self, event: Left) -> None:
        event.stop()
        if self.editor is None or self.editor.has_focus:
            return
        try:
            value = self.entry.parsed(event.text)
        except ValueError:
            value = self.given
        if value != self.given:
            self.post_message(self.Chosen(self, value))
        else:
            self.complain("")
            await self.close_editor()

    async def close_editor(self) -> None:
        """Put the editor away, and the focus back onto the row."""
        editor = self.editor
        if editor is not None:
            inside = editor.has_focus
            await editor.remove()
            if inside:
                self.focus()
