"""The settings screen: what is chosen is in settings.toml at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from edgechat import settings
from edgechat.base.errors import EdgechatError
from edgechat.base.offline import offline_by
from edgechat.base.text import one_line, printable
from edgechat.settings import Settings
from edgechat.settings.reading import name_fault
from edgechat.tui.settings.entries import SettingEntry, entries
from edgechat.tui.settings.row import SettingRow
from edgechat.tui.terminal.screens import AppScreen
from edgechat.tui.widgets.key_bar import KeyBar
from edgechat.tui.widgets.line_field import LineField


class GroupHeading(Static):
    """The name of a group; of a preset it can be gone to, and the preset deleted."""

    DEFAULT_CSS = """
    GroupHeading { height: 1; padding: 0 1; text-style: bold; color: $primary; margin-top: 1; }
    GroupHeading:focus { text-style: bold underline; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("delete,backspace", "remove_preset", "Delete preset")]

    def __init__(self, name: str, preset: str | None = None) -> None:
        super().__init__(Content(name))
        self.named = name
        self.preset = preset
        self.can_focus = preset is not None
        self._asked = False

    def on_blur(self) -> None:
        """Forget that a preset was to be deleted."""
        self._asked = False
        self.update(Content(self.named))

    def action_remove_preset(self) -> None:
        """Ask first: what is in a preset was written by hand."""
        if self._asked and self.preset is not None:
            self.post_message(SettingsScreen.PresetRemoved(self.preset))
        self._asked = True
        self.update(Content(f"{self.named} — press Delete again to delete it"))


class NewPreset(LineField):
    """Where the name of a new preset is typed."""

    DEFAULT_CSS = """
    NewPreset, NewPreset:focus {
        margin: 0 2; height: 3; border: round $border-blurred; background: $background; padding: 0 1;
    }
    NewPreset:focus { border: round $primary; }
    """


class SettingsList(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Scrolls after the focus: its keys are the screen's."""


class SettingsScreen(AppScreen[None]):
    """Every setting, with what it does and what it is. `Changed` tells the app of what was written."""

    DEFAULT_CSS = """
    SettingsScreen {
        #settings-head { height: auto; padding: 0 1; }
        #settings-filter, #settings-filter:focus {
            height: 3; border: round $border-blurred; background: $background; padding: 0 1; margin: 0 1;
        }
        #settings-filter:focus { border: round $primary; }
        #settings-fault { height: auto; padding: 0 1; color: $error; display: none; }
        #settings-none { height: auto; padding: 0 2; display: none; }
        #settings-list { height: 1fr; scrollbar-size-vertical: 1; }
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
        """settings.toml has been written: what it says now, and which setting was changed."""

        settings: Settings
        path: tuple[str, ...]

    @dataclass
    class PresetRemoved(Message):
        """A preset is to be deleted."""

        name: str

    def __init__(self) -> None:
        super().__init__()
        self._said = Settings()
        self._tables: dict[str, Any] = {}
        self._writing = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """From top to bottom; the rows come with `on_mount`."""
        yield Static(id="settings-head")
        yield LineField(placeholder="Filter by name or description", id="settings-filter")
        yield Static(id="settings-fault")
        yield SettingsList(id="settings-list")
        yield KeyBar(id="keys")

    async def on_mount(self) -> None:
        """Read the file and list the settings."""
        head = Content.assemble(
            ("Settings", "bold"), "  ", (one_line(str(settings.settings_file()), 300), "dim")
        )
        self.query_one("#settings-head", Static).update(head)
        self._read()
        await self._list()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        if self.focused is None:  # unless a key was faster
            self._focus(0)

    def _read(self) -> None:
        """Read the file; what is wrong with it is told, and then the defaults are listed."""
        fault, path = "", settings.settings_file()
        self._said, self._tables = Settings(), {}
        try:
            if path.exists():
                self._tables = settings.read_toml(path)
            self._said = settings.load()
        except EdgechatError as error:
            fault = " ".join(filter(None, (error.message, error.hint)))
        shown = self.query_one("#settings-fault", Static)
        shown.display = bool(fault)
        shown.update(Content(printable(f"! {fault}")))

    async def _list(self) -> None:
        listed = self.query_one(SettingsList)
        await listed.remove_children()
        widgets: list[Static | SettingRow | NewPreset] = [
            Static("No setting matches.", id="settings-none", markup=False)
        ]
        heading = ""
        for entry in entries(self._said):
            if entry.heading != heading:
                heading = entry.heading
                widgets.append(GroupHeading(heading, entry.path[1] if entry.path[0] == "presets" else None))
            widgets.append(SettingRow(entry, entry.given(self._tables), by=self._by(entry)))
        widgets.append(GroupHeading("New preset"))
        widgets.append(
            NewPreset(placeholder="its name; a preset sets the system prompt, thinking and sampling")
        )
        await listed.mount_all(widgets)
        self._filter(self.query_one("#settings-filter", LineField).value)

    def _by(self, entry: SettingEntry) -> str:
        """Return what an environment variable makes of a setting, in words; empty where none does."""
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
        fault = name_fault(name) or ("A preset of that name exists." if name in self._said.presets else None)
        if fault:
            event.input.border_subtitle = fault
            return
        self._save(None, ("presets", name), {})

    @work(group="settings")
    async def _save(self, row: SettingRow | None, path: tuple[str, ...], value: Any) -> None:
        async with self._writing:  # in the order of choosing
            try:
                self._said = await asyncio.to_thread(settings.change, path, value)
            except EdgechatError as error:
                fault = " ".join(filter(None, (error.message, error.hint)))
                if row is not None:
                    row.complain(fault)
                else:
                    self.notify(printable(fault), severity="error", markup=False)
                return
            self._read()
            if row is not None:
                row.update(row.entry.given(self._tables))
                await row.close_editor()
                self._update_others(row)
            else:
                await self._list()
                self._go_to_preset(path[1])
        self.post_message(self.Changed(self._said, path))

    def _update_others(self, changed: SettingRow) -> None:
        """Show what another program has written meanwhile."""
        for row in self.query(SettingRow):
            given = row.entry.given(self._tables)
            if row is not changed and row.given != given and row.editor is None:
                row.update(given)

    def _go_to_preset(self, name: str) -> None:
        for one in self.query(GroupHeading):
            if one.preset == name:
                one.focus()
                return
        self._stops[-1].focus()

    # Going about.

    @property
    def _stops(self) -> list[SettingRow | GroupHeading | NewPreset]:
        """What can be gone to, from top to bottom."""
        found = self.query("#settings-list > *").results()
        return [
            one
            for one in found
            if isinstance(one, SettingRow | GroupHeading | NewPreset) and one.can_focus and one.display
        ]

    @property
    def _at(self) -> int:
        """The number of the stop that has the focus; -1 for none."""
        focused = self.focused
        return next(
            (n for n, one in enumerate(self._stops) if focused is one or focused in one.walk_children()), -1
        )

    def _focus(self, n: int) -> None:
        stops = self._stops
        if stops:
            stops[max(0, min(n, len(stops) - 1))].focus()
        if n <= 0:  # with the heading above it
            self.query_one(SettingsList).scroll_home(animate=False)

    def action_go(self, by: int) -> None:
        """Go to the setting above or below; from the first one up to the filter."""
        if self._at + by < 0:
            self.action_filter()
        else:
            self._focus(self._at + by)

    def action_page(self, by: int) -> None:
        """Go a screenful up or down."""
        listed, stops = self.query_one(SettingsList), self._stops
        if not stops:
            return
        at = max(0, self._at)
        goal = stops[at].virtual_region.y + by * max(3, listed.size.height - 3)
        self._focus(min(range(len(stops)), key=lambda n: abs(stops[n].virtual_region.y - goal)))

    def action_end(self, n: int) -> None:
        """Go to the first or the last setting."""
        self._focus(n % max(1, len(self._stops)))

    def action_filter(self) -> None:
        """Go to the filter."""
        self.query_one("#settings-filter").focus()

    def action_back(self) -> None:
        """Take the filter away, else leave."""
        field = self.query_one("#settings-filter", LineField)
        if field.value:
            field.value = ""
            self._focus(0)
        else:
            self.dismiss()

    @on(LineField.Changed, "#settings-filter")
    def _filter_changed(self, event: LineField.Changed) -> None:
        self._filter(event.value)

    @on(LineField.Submitted, "#settings-filter")
    def _filter_done(self) -> None:
        self._focus(0)

    def _filter(self, text: str) -> None:
        """Show only what has these words, and the headings of that."""
        words = text.lower().split()
        found, heading, last = False, None, None
        for one in self.query("#settings-list > *").results():
            if isinstance(one, GroupHeading):
                heading, last = one, one
                one.display = not words
            elif isinstance(one, SettingRow):
                one.display = one.entry.matches(words)
                found = found or one.display
                if heading is not None and one.display:
                    heading.display = True
            elif isinstance(one, NewPreset):
                one.display = not words
                if last is not None:
                    last.display = not words
        self.query_one("#settings-none").display = not found
