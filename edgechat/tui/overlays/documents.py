"""The choice of documents for a conversation: the collections on this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static

from edgechat.base.errors import EdgechatError
from edgechat.base.text import one_line
from edgechat.documents.known import KnownCollection
from edgechat.tui.widgets.dialogs import AppDialog, error_text
from edgechat.tui.widgets.lists import KeyedList, ListLine

_NARROWEST, _WIDEST = 20, 30
"""Letters of the column of names."""
_MOST_ROWS = 5
"""In which the folders of a collection are shown: more would not fit on a small screen."""
_ADD = "To add a folder: /docs FOLDER, or @FOLDER/ in a question."


class DocumentsScreen(AppDialog[None]):
    """Turns collections on and off; each change applies from the next question on."""

    DEFAULT_CSS = """
    DocumentsScreen {
        align: center top;
        & > .frame { margin-top: 1; }
        & KeyedList, & KeyedList:focus { max-height: 12; }
        & Static { height: auto; margin-top: 1; color: $foreground; }
    }
    """
    AUTO_FOCUS = "KeyedList"
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
        """save: takes the new choice. Raises EdgechatError."""
        super().__init__()
        names = {one.name for one in known}
        gone = [KnownCollection(name=name, problem="is gone") for name in chosen if name not in names]
        self._known = [*known, *gone]
        self._chosen = list(chosen)
        self._save = save

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as box:
            yield KeyedList()
            yield Static(id="details", markup=False)
        box.border_title = "Documents in this conversation"
        box.border_subtitle = "Space: on or off · Esc closes"

    def on_mount(self) -> None:
        self._show()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        lines = self.query_one(KeyedList)
        lines.display = bool(self._known)
        lines.show_lines([ListLine(self._line(one), one.name) for one in self._known])
        self._show_details()

    def _line(self, one: KnownCollection) -> Content:
        width = max(_NARROWEST, *(len(one_line(each.name, _WIDEST)) for each in self._known))
        room = max(10, self.query_one(KeyedList).size.width - width - 7)
        mark = "◉" if one.name in self._chosen else "○"
        label = one_line(one.name, _WIDEST).ljust(width)
        return Content.assemble((f"{mark} ", "$primary"), label, (f"  {one_line(one.about, room)}", "dim"))

    @on(OptionList.OptionHighlighted)
    def _show_details(self) -> None:
        name = self.query_one(KeyedList).key
        shown = next((one for one in self._known if one.name == name), KnownCollection(name=""))
        none = [] if self._known else [Content("There are no documents yet.")]
        away = {root.path: root.away for root in shown.away}
        details = self.query_one("#details", Static)
        # What is away comes first, as the rest may not be shown.
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
            on = name in self._chosen
            self._chosen = [one for one in self._chosen if one != name] if on else [*self._chosen, name]
            self._show()
            self._keep()

    @work(group="keep", exclusive=True)
    async def _keep(self) -> None:
        try:
            await self._save(tuple(self._chosen))
        except EdgechatError as error:
            self.app.notify(error_text(error), severity="error", markup=False)
