"""Dialogs that turn documents and tools on and off in a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar

from textual import events, on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.chat.parameters import Adjustable, set_documents, set_tools
from edgechat.chat.reply.calls import told_in_words
from edgechat.chat.reply.chat_tools import choice
from edgechat.chat.session import ChatSession
from edgechat.documents.registry import KnownCollection, known_collections
from edgechat.tools.registry import KnownServer, ToolSet
from edgechat.tools.tool import ToolSpec
from edgechat.tui.widgets.dialogs import AppDialog, error_text
from edgechat.tui.widgets.fields import LineField
from edgechat.tui.widgets.lists import KeyedList, ListLine

_NARROWEST, _WIDEST = 20, 30
"""Minimum and maximum width of the name column, in characters."""
_MOST_ROWS = 5
"""Maximum number of rows for a collection's folders, so that they fit on a small screen."""
_ADD = "To add a folder: /docs FOLDER, or @FOLDER/ in a question."


class SwitchDialog(AppDialog[None]):
    """A list of items to turn on and off, with details. Each change is saved immediately."""

    DEFAULT_CSS = """
    SwitchDialog {
        align: center top;
        & > .frame { margin-top: 1; }
    }
    """
    AUTO_FOCUS = "KeyedList"

    def __init__(self, chosen: Sequence[str], save: Callable[[tuple[str, ...]], Awaitable[None]]) -> None:
        """save: receives the new choice; may raise EdgechatError."""
        super().__init__()
        self._chosen = list(chosen)
        self._save = save

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        """Show the lines, with details for the one at the cursor."""
        raise NotImplementedError

    def _line(self, label: str, about: str, *, is_on: bool) -> Content:
        room = max(10, self.query_one(KeyedList).size.width - len(label) - 7)
        mark = "◉" if is_on else "○"
        return Content.assemble((f"{mark} ", "$primary"), label, (f"  {one_line(about, room)}", "dim"))

    def _choose(self, chosen: list[str]) -> None:
        self._chosen = chosen
        self._show()
        self._keep()

    @work(group="keep", exclusive=True)
    async def _keep(self) -> None:
        try:
            await self._save(tuple(self._chosen))
        except EdgechatError as error:
            self.app.notify(error_text(error), severity="error", markup=False)


class DocumentsScreen(SwitchDialog):
    """A dialog for turning collections on and off. Changes take effect with the next question."""

    DEFAULT_CSS = """
    DocumentsScreen {
        & KeyedList, & KeyedList:focus { max-height: 12; }
        & Static { height: auto; margin-top: 1; color: $foreground; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "On or off", show=False),
        Binding("escape", "dismiss", "Back", show=False),
    ]

    def __init__(
        self,
        known: Sequence[KnownCollection],
        chosen: Sequence[str],
        *,
        save: Callable[[tuple[str, ...]], Awaitable[None]],
    ) -> None:
        super().__init__(chosen, save)
        names = {one.name for one in known}
        gone = [KnownCollection(name=name, problem="is gone") for name in chosen if name not in names]
        self._known = [*known, *gone]

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as box:
            yield KeyedList()
            yield Static(id="details", markup=False)
        box.border_title = "Documents in this conversation"
        box.border_subtitle = "Space: on or off · Esc closes"

    def on_mount(self) -> None:
        self._show()

    def _show(self) -> None:
        lines = self.query_one(KeyedList)
        lines.display = bool(self._known)
        lines.show_lines([ListLine(self._collection_line(one), one.name) for one in self._known])
        self._show_details()

    def _collection_line(self, one: KnownCollection) -> Content:
        width = max(_NARROWEST, *(len(one_line(each.name, _WIDEST)) for each in self._known))
        label = one_line(one.name, _WIDEST).ljust(width)
        return self._line(label, one.about, is_on=one.name in self._chosen)

    @on(OptionList.OptionHighlighted)
    def _show_details(self) -> None:
        name = self.query_one(KeyedList).key
        shown = next((one for one in self._known if one.name == name), KnownCollection(name=""))
        none = [] if self._known else [Content("There are no documents yet.")]
        away = {root.path: root.away for root in shown.away}
        details = self.query_one("#details", Static)
        # Missing folders come first, because the rest may be cut off.
        roots = [
            one_line(away.get(root, root), 200)
            for root in sorted(shown.roots, key=lambda root: root not in away)
        ]
        rows = accumulate(-(-len(root) // max(20, details.size.width)) for root in roots)
        about = [Content(root) for root, row in zip(roots, rows, strict=True) if row <= _MOST_ROWS]
        if more := len(roots) - len(about):
            about.append(Content(f"… and {more:,} more").stylize("dim"))
        about += [Content(one_line(text, 300)).stylize("dim") for text in shown.unread]
        about += [Content(one_line(text)).stylize("$warning") for text in (shown.problem, shown.hint) if text]
        lines = [*none, *about, Content(_ADD).stylize("dim")]
        details.update(Content("\n").join(lines))

    @on(OptionList.OptionSelected)
    def action_switch(self) -> None:
        name = self.query_one(KeyedList).key
        if name is not None:
            others = [one for one in self._chosen if one != name]
            self._choose(others if name in self._chosen else [*self._chosen, name])


_FIELDS = {
    "documents": (
        "Let it search these documents",
        "names, as `edgechat docs list` shows them: NAME+NAME",
        "",
    ),
    "files": ("Let it read this folder", "a folder; ~ is your home", "."),
}
"""Fields for tools' arguments, each with its title, placeholder and initial value."""


class ToolsScreen(SwitchDialog):
    """A dialog for turning tools on and off. Changes take effect with the next reply."""

    DEFAULT_CSS = """
    ToolsScreen {
        & KeyedList, & KeyedList:focus { max-height: 10; }
        & LineField, & LineField:focus {
            display: none; height: 3; border: round $primary; padding: 0 1; background: $surface;
        }
        &.-naming LineField { display: block; }
        & VerticalScroll { height: auto; max-height: 12; margin-top: 1; scrollbar-size-vertical: 1; }
        & #note { height: auto; color: $warning; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "switch", "On or off", show=False),
        Binding("escape", "leave", "Back", show=False),
        Binding("f9", "dismiss", "Back", show=False),
        Binding("pageup", "scroll(-1)", "Scroll up", show=False, priority=True),
        Binding("pagedown", "scroll(1)", "Scroll down", show=False, priority=True),
    ]

    def __init__(
        self,
        known: Sequence[KnownServer],
        chosen: Sequence[str],
        *,
        note: str,
        open_tools: Callable[[Sequence[str]], Awaitable[ToolSet]],
        save: Callable[[tuple[str, ...]], Awaitable[None]],
    ) -> None:
        """note: text about the model, shown at the top. open_tools: starts the chosen tools."""
        super().__init__(chosen, save)
        self._known, self._note = known, note
        self._naming = ""
        """Name of the tools whose argument is being entered."""
        self._open_tools = open_tools
        self._offered: dict[str, Content] = {}
        """Details of the tools that are on, keyed by name."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as box:
            yield Static(self._note, id="note", markup=False)
            yield KeyedList()
            yield LineField()
            with VerticalScroll(can_focus=False):
                yield Static(id="details")
        box.border_title = "Tools in this conversation"
        box.border_subtitle = "Space: on or off · Esc closes"

    def on_mount(self) -> None:
        self.query_one("#note").display = bool(self._note)
        self._show()
        for name in self._names:
            if self._chosen_as(name):
                self._look_into(name)

    @property
    def _names(self) -> list[str]:
        """Names of the listed tools: known ones, and chosen ones that no longer exist."""
        names = [server.name for server in self._known]
        gone = [name for name in self._chosen if name not in names and name.partition(":")[0] not in _FIELDS]
        return names + gone

    def _chosen_as(self, name: str) -> str:
        """Return the chosen item that a line stands for, including its argument, or '' if it is off."""
        if name in _FIELDS:
            return next((one for one in self._chosen if one.startswith(f"{name}:")), "")
        return name if name in self._chosen else ""

    def _show(self) -> None:
        lines = self.query_one(KeyedList)
        lines.show_lines([ListLine(self._tool_line(name), name) for name in self._names])
        self._show_details()

    def _tool_line(self, name: str) -> Content:
        chosen = self._chosen_as(name)
        about = next((server.about for server in self._known if server.name == name), "no longer exists")
        if name in _FIELDS and chosen:
            about = chosen.removeprefix(f"{name}:")
        return self._line(one_line(name, 24).ljust(14), about, is_on=bool(chosen))

    @on(OptionList.OptionHighlighted)
    def _show_details(self) -> None:
        name = self.query_one(KeyedList).key or ""
        details = self._offered.get(self._chosen_as(name))
        if details is None:
            details = Content("More tools: edgechat mcp add NAME COMMAND").stylize("dim")
        self.query_one("#details", Static).update(details)

    @on(OptionList.OptionSelected)
    def action_switch(self) -> None:
        name = self.query_one(KeyedList).key
        if name is None or self.query_one(LineField).has_focus:
            return
        if chosen := self._chosen_as(name):
            self._choose([one for one in self._chosen if one != chosen])
        elif name in _FIELDS:
            self._naming = name
            field = self.query_one(LineField)
            field.border_title, field.placeholder, field.value = _FIELDS[name]
            field.border_subtitle = ""
            self.add_class("-naming")
            field.focus()
        else:
            self._choose([*self._chosen, name])
            self._look_into(name)

    @on(LineField.Submitted)
    def _take_argument(self, event: LineField.Submitted) -> None:
        try:
            (named,) = choice(f"{self._naming}:{event.value.strip()}", self._known) or ("",)
        except (EdgechatError, ValueError) as error:  # an unknown name, or one with a comma
            text = error.message if isinstance(error, EdgechatError) else ""
            self.query_one(LineField).border_subtitle = Content(one_line(text, 70))
            return
        self._end_naming()
        self._choose([*self._chosen, named])
        self._look_into(self._naming)

    def _end_naming(self) -> None:
        self.remove_class("-naming")
        self.query_one(KeyedList).focus()

    @work(group="open")
    async def _look_into(self, name: str) -> None:
        """Start the tools with this name, and show what they offer or why they fail."""
        chosen = self._chosen_as(name)
        self._offered[chosen] = Content(f"Starting {one_line(name, 60)} …").stylize("dim")
        self._show_details()
        found = await self._open_tools([chosen])
        problems = [Content(error_text(problem)).stylize("$warning") for problem in found.problems]
        self._offered[chosen] = Content("\n").join([*problems, *map(_offer_line, found.tools)])
        self._show_details()

    def action_leave(self) -> None:
        if self.has_class("-naming"):
            self._end_naming()
        else:
            self.dismiss()


def _offer_line(tool: ToolSpec) -> Content:
    about = one_line(tool.description, 300)
    return Content.assemble((one_line(tool.name, 60), "bold"), f"  {about}")


async def choose_documents(app: App[Any], session: ChatSession, chat: Adjustable) -> None:
    """Let the user choose which documents to search in a conversation."""
    known = await asyncio.to_thread(known_collections)
    chosen = session.chosen_documents(chat.settings)
    await app.push_screen_wait(DocumentsScreen(known, chosen, save=partial(set_documents, session, chat)))


async def choose_tools(app: App[Any], session: ChatSession, chat: Adjustable) -> None:
    """Let the user choose which tools the model may call in a conversation."""
    model = session.loaded.model if session.loaded is not None else None
    note = told_in_words(model.name) if model is not None and not model.has_tools else ""
    known, chosen = await session.tools.known(), session.chosen_tools(chat.settings)
    save = partial(set_tools, session, chat)
    await app.push_screen_wait(
        ToolsScreen(known, chosen, note=note, open_tools=session.tools.open, save=save)
    )
