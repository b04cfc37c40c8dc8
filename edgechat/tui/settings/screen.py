"""Settings screen: every change is written to settings.toml immediately."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from edgechat import settings
from edgechat.base.errors import EdgechatError
from edgechat.base.network.offline import offline_by
from edgechat.base.text import one_line, printable
from edgechat.models.local.resolve import entry_of, resolve
from edgechat.models.remote.model import split_remote
from edgechat.planner.placement.drafting import AUTO, MTP, NGRAM, NONE
from edgechat.planner.placement.programs import split_engine
from edgechat.settings import Settings
from edgechat.settings.reading import name_fault
from edgechat.tui.settings.rows import MODEL_KINDS, SettingEntry, SettingRow, entries
from edgechat.tui.widgets.dialogs import AppScreen, ScreenScroll, error_text
from edgechat.tui.widgets.fields import LineField
from edgechat.tui.widgets.key_bar import KeyBar


class GroupHeading(Static):
    """A group's heading. A preset's heading can be focused so that the preset can be deleted."""

    DEFAULT_CSS = """
    GroupHeading { height: 1; padding: 0 1; text-style: bold; color: $primary; background: $panel; }
    GroupHeading:focus { text-style: bold underline; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("delete,backspace", "remove_preset", "Delete preset")]

    def __init__(self, name: str, preset: str | None = None) -> None:
        super().__init__(Content(name))
        self.preset = preset
        self.can_focus = preset is not None
        self._title = name
        self._asked = False

    def on_blur(self) -> None:
        self._asked = False
        self.update(Content(self._title))

    def action_remove_preset(self) -> None:
        """Delete the preset after asking for confirmation, since it is the user's own text."""
        if self._asked and self.preset is not None:
            self.post_message(SettingsScreen.PresetRemoved(self.preset))
        self._asked = True
        self.update(Content(f"{self._title} — press Delete again to confirm"))


class NewPreset(LineField):
    """A field for naming a new preset."""

    DEFAULT_CSS = """
    NewPreset, NewPreset:focus {
        margin: 1 1; height: 3; border: round $border-blurred; background: $background; padding: 0 1;
    }
    NewPreset:focus { border: round $primary; }
    """


class SettingsScreen(AppScreen[None]):
    """A screen with every setting, its description and its value. Posts `Changed` after each write."""

    DEFAULT_CSS = """
    SettingsScreen {
        align-horizontal: center;
        & > * { max-width: 110; }
        #settings-head { height: auto; padding: 0 2; }
        #settings-filter, #settings-filter:focus {
            height: 3; border: round $border-blurred; background: $background; padding: 0 1; margin: 0 1;
        }
        #settings-filter:focus { border: round $primary; }
        #settings-fault { height: auto; padding: 0 1; color: $error; display: none; }
        #settings-none { height: auto; padding: 0 2; display: none; }
        #settings-list { height: 1fr; scrollbar-size-vertical: 1; padding: 0 1; }
    }
    """
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back"),
        Binding("up", "go(-1)", "Previous setting", show=False),
        Binding("down", "go(1)", "Next setting", show=False),
        Binding("slash,ctrl+f", "filter", "Filter"),
        Binding("pageup", "page(-1)", "A page up", show=False),
        Binding("pagedown", "page(1)", "A page down", show=False),
        Binding("home", "end(0)", "First setting", show=False),
        Binding("end", "end(-1)", "Last setting", show=False),
    ]

    @dataclass
    class Changed(Message):
        """settings.toml has been written. path: the setting that changed."""

        settings: Settings
        path: tuple[str, ...]

    @dataclass
    class PresetRemoved(Message):
        """A request to delete a preset."""

        name: str

    def __init__(self) -> None:
        super().__init__()
        self._settings = Settings()
        self._tables: dict[str, Any] = {}
        self._write_lock = asyncio.Lock()

    def compose(self) -> ComposeResult:
        yield Static(id="settings-head")
        yield LineField(placeholder="Filter by name or description", id="settings-filter")
        yield Static(id="settings-fault")
        yield ScreenScroll(id="settings-list")
        yield KeyBar(id="keys")

    async def on_mount(self) -> None:
        path = one_line(str(settings.settings_file()), 300)
        heading = Content.assemble(("Settings", "bold $primary"), "  ", (path, "dim"))
        self.query_one("#settings-head", Static).update(heading)
        self._read_file()
        await self._rebuild_list()
        self.call_after_refresh(self._focus_first)

    def _focus_first(self) -> None:
        if self.focused is None:  # unless a key has already moved the focus
            self._focus(0)

    def _read_file(self) -> None:
        """Read the file; if it is invalid, show why and use the defaults."""
        fault, path = "", settings.settings_file()
        self._settings, self._tables = Settings(), {}
        try:
            if path.exists():
                self._tables = settings.read_toml(path)
            self._settings = settings.load()
        except EdgechatError as error:
            fault = error_text(error)
        line = self.query_one("#settings-fault", Static)
        line.display = bool(fault)
        line.update(Content(printable(f"! {fault}")))

    async def _rebuild_list(self) -> None:
        settings_list = self.query_one(ScreenScroll)
        await settings_list.remove_children()
        widgets: list[Static | SettingRow | NewPreset] = [
            Static("No setting matches.", id="settings-none", markup=False)
        ]
        heading = ""
        for entry in entries(self._settings):
            if entry.heading != heading:
                heading = entry.heading
                widgets.append(GroupHeading(heading, entry.path[1] if entry.path[0] == "presets" else None))
            widgets.append(SettingRow(entry, entry.value_in(self._tables), override=self._override(entry)))
        widgets.append(GroupHeading("New preset"))
        widgets.append(
            NewPreset(placeholder="its name; a preset sets the system prompt, thinking and sampling")
        )
        await settings_list.mount_all(widgets)
        self._apply_filter()

    def _override(self, entry: SettingEntry) -> str:
        """Return how the environment overrides a setting, in words for users; empty if it does not."""
        if entry.path == ("offline",) and (variable := offline_by()):
            return f"on, because of {variable}"
        if entry.path == ("theme",) and self.app.no_color:
            return "without colours, because of NO_COLOR"
        return ""

    # Writing.

    @on(SettingRow.Chosen)
    def _chosen(self, event: SettingRow.Chosen) -> None:
        self._save(event.row, event.row.entry.path, event.value)

    @on(PresetRemoved)
    def _preset_removed(self, event: PresetRemoved) -> None:
        self._save(None, ("presets", event.name), None)

    @on(LineField.Submitted, "NewPreset")
    def _new_preset(self, event: LineField.Submitted) -> None:
        name = event.value.strip()
        fault = name_fault(name) or (
            "A preset with that name already exists." if name in self._settings.presets else None
        )
        if fault:
            event.input.border_subtitle = fault
            return
        self._save(None, ("presets", name), {})

    @work(group="settings")
    async def _save(self, row: SettingRow | None, path: tuple[str, ...], value: Any) -> None:
        async with self._write_lock:  # keep changes in order
            try:
                await asyncio.to_thread(check_name, path, value, self._settings)
                self._settings = await asyncio.to_thread(settings.change, path, value)
            except EdgechatError as error:
                fault = error_text(error)
                if row is not None:
                    row.show_fault(fault)
                else:
                    self.notify(printable(fault), severity="error", markup=False)
                return
            self._read_file()
            if row is not None:
                row.update(row.entry.value_in(self._tables))
                await row.close_editor()
                self._update_others(row)
            else:
                await self._rebuild_list()
                self._go_to_preset(path[1])
        self.post_message(self.Changed(self._settings, path))

    def _update_others(self, changed: SettingRow) -> None:
        """Show changes made by other programs."""
        for row in self.query(SettingRow):
            value = row.entry.value_in(self._tables)
            if row is not changed and row.value != value and row.editor is None:
                row.update(value)

    def _go_to_preset(self, name: str) -> None:
        for heading in self.query(GroupHeading):
            if heading.preset == name:
                heading.focus()
                return
        self._stops[-1].focus()

    # Navigation.

    @property
    def _stops(self) -> list[SettingRow | GroupHeading | NewPreset]:
        """The focusable widgets, from top to bottom."""
        return [
            widget
            for widget in self.query_one(ScreenScroll).children
            if isinstance(widget, SettingRow | GroupHeading | NewPreset)
            and widget.can_focus
            and widget.display
        ]

    @property
    def _position(self) -> int:
        """Index of the focused widget; -1 if there is none."""
        ancestors = self.focused.ancestors_with_self if self.focused is not None else []
        return next((n for n, stop in enumerate(self._stops) if stop in ancestors), -1)

    def _focus(self, n: int) -> None:
        stops = self._stops
        if stops:
            stops[max(0, min(n, len(stops) - 1))].focus()
        if n <= 0:  # reveal the heading above it
            self.query_one(ScreenScroll).scroll_home(animate=False)

    def action_go(self, by: int) -> None:
        """Move to the setting above or below; the filter is above the first one."""
        if self._position + by < 0:
            self.action_filter()
        else:
            self._focus(self._position + by)

    def action_page(self, by: int) -> None:
        """Move up (-1) or down (1) by a page."""
        stops = self._stops
        if not stops:
            return
        y = stops[max(0, self._position)].virtual_region.y
        goal = y + by * max(3, self.query_one(ScreenScroll).size.height - 3)
        self._focus(min(range(len(stops)), key=lambda n: abs(stops[n].virtual_region.y - goal)))

    def action_end(self, n: int) -> None:
        """Move to the first setting (0) or the last (-1)."""
        self._focus(n % max(1, len(self._stops)))

    def action_filter(self) -> None:
        self.query_one("#settings-filter").focus()

    def action_back(self) -> None:
        """Clear the filter, or leave the screen."""
        field = self.query_one("#settings-filter", LineField)
        if field.value:
            field.value = ""
            self._focus(0)
        else:
            self.dismiss()

    @on(LineField.Submitted, "#settings-filter")
    def _filter_done(self) -> None:
        self._focus(0)

    @on(LineField.Changed, "#settings-filter")
    def _apply_filter(self) -> None:
        """Show only the settings that contain the filter's words, with their headings."""
        words = self.query_one("#settings-filter", LineField).value.lower().split()
        any_match, heading = False, None
        for widget in self.query_one(ScreenScroll).children:
            if isinstance(widget, GroupHeading):
                heading = widget
                widget.display = not words
            elif isinstance(widget, SettingRow):
                widget.display = widget.entry.matches(words)
                any_match = any_match or widget.display
                if heading is not None and widget.display:
                    heading.display = True
            elif isinstance(widget, NewPreset):
                widget.display = not words
        self.query_one("#settings-none").display = not any_match


def check_name(path: tuple[str, ...], value: Any, known: Settings) -> None:
    """Check the value of a setting if it names a model.

    Raises ModelNotFound for a model that is neither local nor in the catalogue, and ModelFileError for a path
    that is not a model. Blocks, but contacts no other programs or servers: their models are not checked.
    """
    if path not in MODEL_KINDS or value is None or value in (AUTO, NONE, NGRAM, MTP):
        return
    elsewhere = split_engine(value)[0] is not None or split_remote(value, known.remotes) is not None
    if not elsewhere and entry_of(value) is None:
        resolve(value)
