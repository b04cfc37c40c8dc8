"""The models screen: local models, downloads, and models that could be downloaded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList, Static

from edgechat.base.errors import DoesNotFit, EdgechatError
from edgechat.base.text import mebibytes, one_line, printable
from edgechat.tui.models.browser import ModelBrowser
from edgechat.tui.models.descriptions import explain
from edgechat.tui.models.items import ModelGroup
from edgechat.tui.models.known_models import KnownModels
from edgechat.tui.models.pull import Pull, PullState
from edgechat.tui.widgets.dialogs import AppScreen, ConfirmDialog, TextDialog, error_text
from edgechat.tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from edgechat.models.local.inventory import LocalModel
    from edgechat.models.local.removal import Removal
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.tui.models.library import ModelLibrary
    from edgechat.tui.models.pulls import Pulls


class ModelsScreen(AppScreen[str | None]):
    """Results in the name of the model to chat with, or None."""

    DEFAULT_CSS = """
    ModelsScreen {
        background: $background;
        & #machine { height: auto; max-height: 3; padding: 0 2; }
        &.-narrow, &.-middle {
            & #panes { layout: vertical; }
            & #left { width: 100%; height: 3fr; }
            & Details { width: 100%; height: 2fr; border-left: none; border-top: hkey $divider; }
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
        Binding("enter,p", "resume", "Resume"),
        Binding("enter,p", "retry", "Retry"),
        Binding("x", "stop", "Stop"),
        Binding("x", "forget", "Remove"),
        Binding("escape", "back", "Back"),
        Binding("tab,shift+tab", "switch_pane", "Quants"),
        Binding("w", "why", "Why"),
        Binding("d,delete", "delete", "Delete"),
        Binding("slash", "filter", "Find", key_display="/"),
        Binding("r", "refresh", "Refresh"),
        Binding("down", "focus_list", "To the list", show=False),
    ]

    def __init__(self, library: ModelLibrary, pulls: Pulls, current: str | None = None) -> None:
        """current: the name of the model of the chat."""
        super().__init__()
        self._library, self._pulls, self._current = library, pulls, current
        self._models = KnownModels(library, pulls, current)

    def compose(self) -> ComposeResult:
        yield Static(id="machine")
        yield ModelBrowser(self._models, self._current)
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self._pulls.listen(self._pull_changed)
        self._load()

    def on_unmount(self) -> None:
        self._pulls.unlisten(self._pull_changed)

    @property
    def _browser(self) -> ModelBrowser:
        return self.query_one(ModelBrowser)

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._browser.fill)  # once the panes have their sizes

    # Loading.

    @work(group="load", exclusive=True)
    async def _load(self) -> None:
        self._show_header("Finding models…")
        await self._models.load(self._show_progress)
        self._survey()

    def _show_progress(self) -> None:
        if not self.is_open:
            return
        is_first = self._models.is_loading and self._models.overview is None
        self._show_header("Inspecting this machine…" if is_first else "")
        self._browser.fill()

    def _show_header(self, activity: str) -> None:
        models = self._models
        parts: list[tuple[str, str]] = [("Models", "bold $primary")]
        if models.overview is not None:
            parts.append((f"  {printable(models.overview.found.machine)}", "dim"))
        if models.offline:
            parts.append((f"  offline: {models.offline}", "$warning"))
        if models.problem is not None:
            parts.append((f"\n{printable(error_text(models.problem))}", "$error"))
        parts.append((f"  {activity}", "dim"))
        self.query_one("#machine", Static).update(Content.assemble(*parts))

    @on(ModelBrowser.SurveyWanted)
    @work(group="survey", exclusive=True)
    async def _survey(self) -> None:
        item = self._browser.item
        if item is not None and await self._models.survey(item) and self.is_open:
            self._browser.show_item()

    def action_refresh(self) -> None:
        self._models.forget_surveys()
        self._load()

    # Chatting.

    @on(OptionList.OptionSelected)
    async def _clicked(self) -> None:
        for action in ("chat", "pull", "resume", "retry"):
            if self.check_action(action, ()):
                await self.run_action(action)

    def action_chat(self) -> None:
        row = self._browser.row
        if row is not None and row.glance.damage:
            self._warn(row.glance.damage)
        elif row is not None:
            self.dismiss(row.model.chat_name)
        elif (item := self._browser.item) is not None and item.hosted is not None:
            self.dismiss(item.name)

    # Pulling.

    @work
    async def action_pull(self) -> None:
        item, quant = self._browser.item, self._browser.quant
        if quant is not None:
            await self._pull(quant.variant.model, quant.quant, quant)
        elif item is not None:
            await self._pull(item.name, None, item.option)

    async def _pull(self, name: str, quant: str | None, option: RankedFile | None) -> None:
        """Start a pull, unless edgechat is offline, or the model does not fit and the user declines."""
        offline = self._models.offline
        if offline:
            self._warn(f"{one_line(name, 60)} cannot be downloaded: {offline} keeps edgechat offline.")
            return
        does_not_fit = option is not None and option.plan is None
        if option is None or not does_not_fit or await self._confirm_download(option.why_not):
            pull = self._pulls.start(name, quant, anyway=does_not_fit)
            self._browser.fill(f"pull:{pull.name}:{pull.quant}")

    def action_retry(self) -> None:
        self.action_resume()

    @work
    async def action_resume(self) -> None:
        pull = self._selected_pull
        if pull is None or not pull.is_over:
            return
        if not isinstance(pull.error, DoesNotFit):
            self._pulls.retry(pull)
        elif await self._confirm_download(pull.error.message):
            self._pulls.retry(pull, anyway=True)

    @property
    def _selected_pull(self) -> Pull | None:
        item = self._browser.item
        return item.pull if item is not None else None

    async def _confirm_download(self, why: str) -> bool:
        """Ask whether to download a model that does not fit."""
        question = Content(f"{printable(why)}\n\nDownload it anyway?")
        return await self.app.push_screen_wait(ConfirmDialog(question, yes="Download", no="Cancel"))

    def action_stop(self) -> None:
        if (pull := self._selected_pull) is not None:
            self._pulls.stop(pull)

    def action_forget(self) -> None:
        if (pull := self._selected_pull) is not None:
            self._pulls.forget(pull)

    def _pull_changed(self, pull: Pull) -> None:
        if not self.is_open:
            return
        is_selected = self._selected_pull is pull
        if pull.state is PullState.DONE:
            self.action_refresh()
        self._browser.fill(pull.model or "" if is_selected else "")

    # Deleting.

    @work(group="delete", exclusive=True)
    async def action_delete(self) -> None:
        row = self._browser.row
        if row is None:
            return
        try:
            removal = await asyncio.to_thread(self._library.removal, row.model)
            question = _deletion_question(row.model, removal)
            if not await self.app.push_screen_wait(ConfirmDialog(question, yes="Delete it", no="Keep it")):
                return
            await asyncio.to_thread(removal.run)
        except EdgechatError as error:
            self._warn(error_text(error))
            return
        freed = f" {mebibytes(removal.frees)} freed." if removal.frees else ""
        self.notify(printable(f"Deleted {one_line(row.model.name, 60)}.{freed}"), markup=False)
        self.action_refresh()

    # Reading and moving.

    def action_why(self) -> None:
        item = self._browser.item
        if item is not None:
            title = f"{one_line(item.name, 40)} {item.quant or ''}".rstrip()
            self.app.push_screen(TextDialog(title, explain(item)))

    def action_switch_pane(self) -> None:
        self._browser.switch_pane()

    def action_filter(self) -> None:
        self._browser.open_filter()

    def action_focus_list(self) -> None:
        self._browser.focus_list()

    def action_back(self) -> None:
        """Leave the filter, the other pane or the screen, whichever comes first."""
        if not self._browser.step_back():
            self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Show and allow only what can be done now."""
        if not self.is_mounted:
            return True
        browser = self._browser
        if browser.is_typing:
            return action in ("focus_list", "back")
        item, is_local = browser.item, browser.row is not None
        pull = item.pull if item is not None else None
        is_hosted = item is not None and item.group is ModelGroup.HOSTED
        match action:
            case "chat":
                return is_local or (item is not None and item.hosted is not None)
            case "delete":
                return is_local
            case "pull":
                return item is not None and pull is None and not is_local and not is_hosted
            case "retry":
                return pull is not None and pull.state is PullState.FAILED
            case "resume":
                return pull is not None and pull.is_over and pull.state is not PullState.FAILED
            case "forget":
                return pull is not None and pull.is_over
            case "stop":
                return pull is not None and not pull.is_over
            case "why":
                return item is not None and item.option is not None
        return action != "focus_list"

    def _warn(self, text: str) -> None:
        self.notify(printable(text), severity="warning", timeout=10, markup=False)


def _deletion_question(model: LocalModel, removal: Removal) -> Content:
    frees = f"This frees {mebibytes(removal.frees)}."
    if not removal.frees:
        frees = "This frees no space: the same data is linked elsewhere."
    files = [one_line(str(path), 200) for path in removal.files[:6]]
    more = [f"and {len(removal.files) - 6} more"] if len(removal.files) > 6 else []
    return Content(printable("\n".join((f"Delete {one_line(model.name, 60)}? {frees}", "", *files, *more))))
