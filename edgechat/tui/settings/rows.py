"""Rows of the settings screen, one for each setting or preset field, and editors for their values."""

from __future__ import annotations

import contextlib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, Union

import msgspec
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
from edgechat.base.text import one_line, printable
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.header import ModelKind
from edgechat.settings import Documented, Preset, Settings, documented
from edgechat.settings.documentation import describe_type, format_value
from edgechat.settings.fields import SYSTEM_LENGTH
from edgechat.settings.reading import checked_value, literals, stripped
from edgechat.tui.widgets.fields import Area, LineField

Editor = Literal["choice", "line", "text"]
"""How a value is edited: by stepping through the allowed values, or as one or more lines of text."""

_PRESET_DEFAULT = "the chat's own"
_APPLIES = {
    "now": "",
    "new chat": "Applies to new chats.",
    "load": "Applies the next time a model is loaded.",
    "start": "Applies the next time edgechat is started.",
}


@dataclass(frozen=True, slots=True)
class SettingEntry:
    """A setting, or a field of a preset."""

    path: tuple[str, ...]
    """Keys in the file, such as ('sampling', 'top_p')."""
    heading: str
    """The group's name, such as 'Sampling' or 'Preset coder'."""
    default: str
    doc: str
    applies: str
    """When a change takes effect, as a sentence; empty if it does so immediately."""
    type: Any

    @property
    def label(self) -> str:
        """The name shown below the group's heading."""
        return self.path[-1]

    @property
    def kind(self) -> str:
        """The allowed values, in words for users."""
        return describe_type(self.type)

    @property
    def description(self) -> str:
        """The description, the allowed values, and when a change takes effect."""
        kind = self.kind
        allowed = "" if kind in ("text", "on or off") else f"Allowed: {kind}."
        return " ".join(filter(None, (self.doc, allowed, self.applies)))

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values, if there are only a few. None, if listed, leaves the choice to edgechat."""
        plain = stripped(self.type)
        options = tuple(literals(plain)) or ((True, False) if bool in (plain, *_parts(plain)) else ())
        return (None, *options) if options and type(None) in _parts(plain) else options

    @property
    def editor(self) -> Editor:
        if self.choices:
            return "choice"
        return "text" if self.label == "system" or self.path[0] == "prompts" else "line"

    def value_in(self, tables: Mapping[str, Any]) -> Any:
        """Return the setting's value in the file, or None."""
        value: Any = tables
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def format(self, value: Any) -> str:
        """Return a value from the file as text."""
        return one_line(format_value(tuple(map(str, value)) if isinstance(value, list) else value), 200)

    def parse(self, text: str) -> Any:
        """Return the value of typed text, or None if empty. Raises ValueError, naming the allowed values."""
        text = text.strip()
        if not text:
            return None
        kinds = (stripped(self.type), *map(stripped, _parts(stripped(self.type))))
        value: Any = text
        try:
            if int in kinds:
                value = int(text)
            elif float in kinds:
                value = float(text)
            elif any(typing.get_origin(kind) is tuple for kind in kinds):
                value = [part.strip() for part in text.split(",") if part.strip()]
            return msgspec.to_builtins(checked_value(value, self.type))
        except ValueError as error:
            allowed = f"text of at most {SYSTEM_LENGTH} characters" if self.kind == "text" else self.kind
            raise ValueError(f"Allowed: {allowed}.") from error

    def matches(self, words: list[str]) -> bool:
        """Return whether the entry contains all these lowercase words."""
        text = f"{self.heading} {'.'.join(self.path)} {self.doc} {self.kind}".lower()
        return all(word in text for word in words)


def entries(settings: Settings) -> Iterator[SettingEntry]:
    """Yield the entries, group by group."""
    fields = documented()
    for group in ("Model", "Conversation", "Sampling", "Appearance", "Machine"):
        for field in fields:
            if field.group == group:
                path = tuple(field.name.split("."))
                yield SettingEntry(
                    path, group, field.default, field.doc, _APPLIES[field.applies_from], field.type
                )
    for name in settings.presets:
        yield from _preset_entries(name, fields)
    about = next(field for field in fields if field.name == "prompts")
    _, text_type = typing.get_args(stripped(about.type))
    for name in settings.prompts:
        yield SettingEntry(("prompts", name), "Prompts", "none", about.doc, "", text_type)


def _preset_entries(preset: str, fields: tuple[Documented, ...]) -> Iterator[SettingEntry]:
    for name in Preset.__struct_fields__:
        for field in fields:
            if field.name != name and not field.name.startswith(f"{name}."):
                continue
            path = ("presets", preset, *field.name.split("."))
            doc = "The preset's system prompt." if field.name == "system" else field.doc
            yield SettingEntry(path, f"Preset {preset}", _PRESET_DEFAULT, doc, "", field.type)


def _parts(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else ()


MODEL_KINDS: dict[tuple[str, ...], ModelKind] = {
    ("model",): "chat",
    ("draft",): "chat",
    ("embedding_model",): "embedding",
    ("reranking_model",): "reranking",
}
"""Settings that name a model, and the kind of model that each one names."""


class LineEditor(LineField):
    """One-line editor for a value. Enter saves, Escape cancels."""

    DEFAULT_CSS = """
    LineEditor, LineEditor:focus {
        height: 3; border: round $primary; padding: 0 1;
        background: $background; background-tint: transparent;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def action_cancel(self) -> None:
        self.post_message(SettingRow.EditCancelled())


class TextEditor(Area):
    """Multi-line editor for a value. Ctrl+S saves, Escape cancels."""

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


class SettingRow(Vertical, can_focus=True):
    """The row of a setting. Posts each chosen or typed value as `Chosen`, for the screen to write."""

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
        """A request to write a value; None restores the default."""

        row: SettingRow
        value: Any

    class EditCancelled(Message):
        """Escape was pressed in the editor."""

    @dataclass
    class TextEntered(Message):
        """A request to save the text."""

        value: str

    def __init__(self, entry: SettingEntry, value: Any, *, override: str = "") -> None:
        """value: the value in the file, or None. override: what applies instead, and why."""
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
        self.value = value
        self.show_fault("")
        self._show_value()

    def show_fault(self, fault: str) -> None:
        """Show a problem below the value; '' removes it."""
        line = self.query_one(".row--fault", Static)
        line.display = bool(fault)
        line.update(Content(printable(f"! {fault}") if fault else ""))

    @property
    def editor(self) -> Widget | None:
        """The value's editor, if open."""
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
        """Let the editor have the keys while it is open."""
        return self.editor is None

    def on_click(self, event: events.Click) -> None:
        if self.editor is None and event.chain == 2:  # the first click focuses the row
            self.action_edit()

    def action_edit(self) -> None:
        """Choose the next allowed value, or open an editor."""
        if self.editor is not None or not self.is_attached:  # the screen may have been closed
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
        kind = MODEL_KINDS.get(self.entry.path)
        if kind is None:
            return None
        with contextlib.suppress(EdgechatError):
            words = ["mtp", "ngram"] if self.entry.path == ("draft",) else []
            names = [model.name for model in catalogue() if model.kind == kind]
            return SuggestFromList([*words, *names], case_sensitive=False)
        return None

    def action_step(self, by: int) -> None:
        """Choose the previous (-1) or next (1) allowed value."""
        choices = self.entry.choices
        if not choices or self.editor is not None:
            return
        value = self.value
        if value not in choices:  # the default is in effect
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

    @on(LineField.Submitted)
    @on(TextEntered)
    def _text_entered(self, event: LineField.Submitted | TextEntered) -> None:
        event.stop()
        try:
            value = self.entry.parse(event.value)
        except ValueError as error:
            self.show_fault(str(error))
        else:
            self.post_message(self.Chosen(self, value))

    @on(EditCancelled)
    async def _edit_cancelled(self, event: EditCancelled) -> None:
        event.stop()
        self.show_fault("")
        await self.close_editor()

    @on(events.DescendantBlur)
    async def _editor_left(self, event: events.DescendantBlur) -> None:
        editor = event.widget
        if editor is not self.editor or not isinstance(editor, LineEditor | TextEditor):
            return
        if editor.has_focus or not self.app.app_focus:  # the terminal itself has lost the focus
            return
        try:
            value = self.entry.parse(editor.text if isinstance(editor, TextEditor) else editor.value)
        except ValueError:
            value = self.value
        if value != self.value:
            self.post_message(self.Chosen(self, value))
        else:
            self.show_fault("")
            await self.close_editor()

    async def close_editor(self) -> None:
        """Remove the editor, and return the focus to the row."""
        editor = self.editor
        if editor is not None:
            had_focus = editor.has_focus
            await editor.remove()
            if had_focus:
                self.focus()
