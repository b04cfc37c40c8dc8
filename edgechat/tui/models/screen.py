"""The models screen: what is on this machine, what is on its way, and what could be pulled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import OptionList, Static

from edgechat.base.errors import DoesNotFit, EdgechatError
from edgechat.base.text import mebibytes, one_line, printable
from edgechat.tui.models import descriptions
from edgechat.tui.models.browser import ModelBrowser
from edgechat.tui.models.dialogs import ConfirmDialog, TextDialog
from edgechat.tui.models.known_models import KnownModels
from edgechat.tui.models.pull import Pull, PullState
from edgechat.tui.terminal.resizing import StaleResizeFilter
from edgechat.tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from edgechat.models.local.inventory import LocalModel
    from edgechat.models.local.removal import Removal
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.models.pulls import Pulls


class ModelsScreen(StaleResizeFilter, Screen[str | None]):
    """Returns the name of the model to chat with, or None."""

    DEFAULT_CSS = """
    ModelsScreen {
        background: $background;
        & #machine { height: auto; max-height: 3; padding: 0 1; }
        &.-narrow, &.-middle {
            & #panes { layout: vertical; }
            & #left { width: 100%; height: 3fr; }
            & Details { width: 100%; height: 2fr; border-left: none; border-top: solid $primary; }
            &.-reading #left { height: 2fr; }
            &.-reading Details { height: 3fr; }
        }
        &.-middle Details {
            layout: horizontal;
            & > VerticalScroll { width: 1fr; height: 100%; max-height: 100%; }
            & > Vertical { width: 48; height: 100%; padding-left: 2; }
            & #quants-title { margin-top: 0; }
        }
        &.-narrow.-low, &.-middle.-low {
            & Details { display: none; }
            &.-reading #left { display: none; }
            &.-reading Details { display: block; border-top: none; }
        }
    }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (90, "-middle"), (120, "-wide")]  # noqa: RUF012  (as in Screen)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (26, "-high")]  # noqa: RUF012
    AUTO_FOCUS = "#list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "chat", "Chat"),
        Binding("enter,p", "pull", "Pull"),
        Binding("enter,p", "again", "Resume"),
        Binding("x", "stop", "Stop"),
        Binding("x", "take_off", "Remove"),
        Binding("escape", "back", "Back"),
        Binding("tab,shift+tab", "other_pane", "Quants"),
        Binding("w", "why", "Why"),
        Binding("d,delete", "delete", "Delete"),
        Binding("slash", "filter", "Find", key_display="/"),
        Binding("r", "refresh", "Refresh"),
        Binding("down", "to_list", "To the list", show=False),
    ]

    def __init__(self, library: ModelLibrary, pulls: Pulls, current: str | None = None) -> None:
        """current: the name of the model of the chat."""
        super().__init__()
        self._library, self._pulls, self._current = library, pulls, current
        self._models = KnownModels(library, pulls)
        self._unlisten: Callable[[], None] = lambda: None

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static(id="machine")
        yield ModelBrowser(self._models, self._current)
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """Begin to look."""
        self._unlisten = self._pulls.listen(self._pull_changed)
        self._load()

    def on_unmount(self) -> None:
        """Listen no more."""
        self._unlisten()

    @property
    def _browser(self) -> ModelBrowser:
        return self.query_one(ModelBrowser)

    def on_resize(self, _: events.Resize) -> None:
        """Lay the lines out anew, once the panes have their sizes."""
        self.call_after_refresh(self._browser.fill)

    # What is known.

    @work(group="load", exclusive=True)
    async def _load(self) -> None:
        self._head("Finding models…")
        await self._models.load(self._loaded)
        self._look()

    @property
    def _is_shown(self) -> bool:
        """Whether it was not left; what goes on behind it may end later."""
        return self in self.app.screen_stack

    def _loaded(self) -> None:
        if not self._is_shown:
            return
        known = self._models
        is_first = known.is_looking and known.known.overview is None
        self._head("Inspecting this machine…" if is_first else "")
        self._browser.fill()

    def _head(self, doing: str) -> None:
        known, held = self._models, self._models.known.overview
        parts: list[tuple[str, str]] = [("Models", "bold")]
        if held is not None:
            parts.append((f"  {printable(held.found.machine)}", "dim"))
        if known.offline:
            parts.append((f"  offline: {known.offline}", "$warning"))
        if known.problem is not None:
            text = " ".join(filter(None, (known.problem.message, known.problem.hint)))
            parts.append((f"\n{printable(text)}", "$error"))
        parts.append((f"  {doing}", "dim"))
        self.query_one("#machine", Static).update(Content.assemble(*parts))

    @on(ModelBrowser.Look)
    @work(group="look", exclusive=True)
    async def _look(self) -> None:
        """Hold the quantizations of the line one is at against the machine."""
        item = self._browser.item
        if item is not None and await self._models.look(item) and self._is_shown:
            self._browser.show_item()

    def action_refresh(self) -> None:
        """Look at everything anew."""
        self._models.forget()
        self._load()

    # Chatting.

    @on(OptionList.OptionSelected)
    async def _clicked(self) -> None:
        for action in ("chat", "pull", "again"):
            if self.check_action(action, ()):
                await self.run_action(action)

    def action_chat(self) -> None:
        """Chat with what one is at, which is here."""
        row = self._browser.row
        if row is not None and row.glance.damage:
            self._warn(row.glance.damage)
        elif row is not None:
            self.dismiss(row.model.name)

    # Pulling.

    @work
    async def action_pull(self) -> None:
        """Pull what one is at, which is not here."""
        item, quant = self._browser.item, self._browser.quant
        if quant is not None:
            await self._pull(quant.variant.model, quant.quant, quant)
        elif item is not None:
            await self._pull(item.name, None, item.option)

    async def _pull(self, name: str, quant: str | None, option: RankedFile | None) -> None:
        """Pull, where nothing speaks against it."""
        offline = self._models.offline
        if offline:
            self._warn(f"{one_line(name, 60)} cannot be downloaded: {offline} keeps edgechat offline.")
            return
        does_not_fit = option is not None and option.plan is None
        if option is None or not does_not_fit or await self._insists(option.why_not):
            pull = self._pulls.start(name, quant, anyway=does_not_fit)
            self._browser.fill(f"pull:{pull.name}:{pull.quant}")

    @work
    async def action_again(self) -> None:
        """Go on with a pull that has ended early."""
        item = self._browser.item
        pull = item.pull if item is not None else None
        if pull is None or not pull.is_over:
            return
        error = pull.error
        if not isinstance(error, DoesNotFit):
            self._pulls.retry(pull)
        elif await self._insists(error.message):
            self._pulls.retry(pull, anyway=True)

    async def _insists(self, why: str) -> bool:
        question = Content(f"{printable(why)}\n\nDownload it anyway?")
        return await self.app.push_screen_wait(ConfirmDialog(question, yes="Download", no="Cancel"))

    def action_stop(self) -> None:
        """End a pull; what has come is kept."""
        item = self._browser.item
        if item is not None and item.pull is not None:
            self._pulls.stop(item.pull)

    def action_take_off(self) -> None:
        """Take a pull that has ended early off the list."""
        item = self._browser.item
        if item is not None and item.pull is not None:
            self._pulls.forget(item.pull)

    def _pull_changed(self, pull: Pull) -> None:
        if not self._is_shown:
            return
        item = self._browser.item
        is_at = item is not None and item.pull is pull
        if pull.state is PullState.DONE:
            self.action_refresh()
        self._browser.fill(pull.model or "" if is_at else "")

    # Deleting.

    @work(group="delete", exclusive=True)
    async def action_delete(self) -> None:
        """Ask, then delete a model that is edgechat's to delete."""
        row = self._browser.row
        if row is None:
            return
        try:
            removal = await asyncio.to_thread(self._library.removal, row.model)
            question = _what_goes(row.model, removal)
            if not await self.app.push_screen_wait(ConfirmDialog(question, yes="Delete it", no="Keep it")):
                return
            await asyncio.to_thread(removal.run)
        except EdgechatError as error:
            self._warn(" ".join(filter(None, (error.message, error.hint))))
            return
        free = f" {mebibytes(removal.frees)} freed." if removal.frees else ""
        self.notify(printable(f"Deleted {one_line(row.model.name, 60)}.{free}"), markup=False)
        self.action_refresh()

    # Reading and moving.

    def action_why(self) -> None:
        """Show every reason."""
        item = self._browser.item
        if item is not None:
            title = f"{one_line(item.name, 40)} {item.quant or ''}".rstrip()
            self.app.push_screen(TextDialog(title, descriptions.explain(item, item.plan)))

    def action_other_pane(self) -> None:
        """Go from the list to the quantizations, or back."""
        self._browser.other_pane()

    def action_filter(self) -> None:
        """Type what to look for."""
        self._browser.open_filter()

    def action_to_list(self) -> None:
        """Go from what was typed to what was found."""
        self._browser.to_list()

    def action_back(self) -> None:
        """Leave, one step at a time: the filter, the other pane, the screen."""
        if not self._browser.step_back():
            self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show and allow only what can be done now."""
        if not self.is_mounted:
            return True
        board = self._browser
        if board.is_typing:
            return action in ("to_list", "back")
        item, is_here = board.item, board.row is not None
        pull = item.pull if item is not None else None
        match action:
            case "chat" | "delete":
                return is_here
            case "pull":
                return item is not None and pull is None and not is_here
            case "again" | "take_off":
                return pull is not None and pull.is_over
            case "stop":
                return pull is not None and not pull.is_over
            case "why":
                return item is not None and item.option is not None
        return action != "to_list"

    def _warn(self, text: str) -> None:
        self.notify(printable(text), severity="warning", timeout=10, markup=False)


def _what_goes(model: LocalModel, removal: Removal) -> Content:
    frees = f"This frees {mebibytes(removal.frees)}."
    if not removal.frees:
        frees = "This frees no space: the same data is linked elsewhere."
    files = [one_line(str(path), 200) for path in removal.files[:6]]
    more = [f"and {len(removal.files) - 6} more"] if len(removal.files) > 6 else []
    return Content(printable("\n".join((f"Delete {one_line(model.name, 60)}? {frees}", "", *files, *more))))
