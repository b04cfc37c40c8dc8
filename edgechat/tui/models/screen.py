"""The models screen: local models, downloads, and downloadable models, with their details."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, ClassVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import OptionList, Static

from edgechat.base.errors import DoesNotFit, EdgechatError
from edgechat.base.text import mebibytes, one_line, printable
from edgechat.tui.models.descriptions import ColumnLayout, describe, explain, quant_lines
from edgechat.tui.models.known_models import KnownModels, ModelGroup, ModelItem
from edgechat.tui.models.pulls import Pull, Pulls, PullState
from edgechat.tui.widgets.dialogs import AppScreen, ConfirmDialog, TextDialog, error_text
from edgechat.tui.widgets.fields import LineField
from edgechat.tui.widgets.key_bar import KeyBar
from edgechat.tui.widgets.lists import KeyedList, ListLine

if TYPE_CHECKING:
    from edgechat.models.local.inventory import LocalModel
    from edgechat.models.local.upkeep import Removal
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.ranking.ranking import RankedFile, SurveyFindings
    from edgechat.tui.models.library import ModelLibrary


_SURVEY_DELAY = 0.15
"""Seconds that the cursor must rest on a model before its quantizations are rated."""


class Details(Vertical):
    """A model's description, with its memory use as bars, above a list of its quantizations."""

    DEFAULT_CSS = """
    Details {
        padding: 0 1 0 2;
        & > VerticalScroll { height: auto; max-height: 65%; scrollbar-size-vertical: 1; }
        & > VerticalScroll, & #quants { scrollbar-background: $surface; }
        & > Vertical { height: 1fr; min-height: 4; }
        & #quants-title { margin-top: 1; height: auto; max-height: 4; }
    }
    """

    _survey_name = ""
    """Name of the model whose quantizations are on display."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(id="about")
        with Vertical():
            yield Static(id="quants-title")
            yield KeyedList(id="quants")

    def show(
        self, item: ModelItem | None, survey: SurveyFindings | None, *, offline: str = "", waiting: str = ""
    ) -> None:
        """Show a model and its survey. waiting: why there is no survey, if it is None."""
        about = self.query_one("#about", Static)
        title = self.query_one("#quants-title", Static)
        quants = self.query_one("#quants", KeyedList)
        width = max(20, self.query_one(VerticalScroll).size.width - 1)
        about.update(describe(item, width, offline) if item is not None else Content(""))
        if item is None or survey is None:
            quants.show_lines([])
            title.update(Content.styled(printable(waiting), "dim"))
            self._survey_name = ""
            return
        best = survey.chosen.quant if survey.chosen is not None else None
        heading, lines = quant_lines(survey.options, max(20, quants.size.width - 1), best)
        title.update(heading)
        quants.show_lines([ListLine(line, key=str(n)) for n, line in enumerate(lines)])
        if item.survey_name != self._survey_name:
            self._survey_name = item.survey_name
            names = [option.quant for option in survey.options]
            quants.go_to(str(names.index(best) if best in names else 0))


class ModelBrowser(Vertical):
    """A list of models and the selected model's details. A filter can be opened above them."""

    DEFAULT_CSS = """
    ModelBrowser {
        height: 1fr;
        & #filter { display: none; height: 1; border: none; padding: 0 1; background: $background; }
        & #filter.-open { display: block; }
        & #panes { height: 1fr; }
        & #left { width: 1fr; height: 1fr; padding: 0 1; }
        & #titles { height: 1; text-wrap: nowrap; }
        & #list:blur > .option-list--option-highlighted { text-style: bold underline; }
        & #none { height: auto; margin: 1 2; display: none; }
        & Details { width: 44%; height: 1fr; background: $surface; border-left: vkey $divider; }
    }
    """

    class SurveyWanted(Message):
        """A request to rate a model's quantizations, sent once the cursor has rested on the model."""

    def __init__(self, models: KnownModels, current: str | None) -> None:
        """current: name of the chat's model."""
        super().__init__()
        self._models, self._current = models, current
        self._items: dict[str, ModelItem] = {}
        self._survey_timer: Timer | None = None
        self._pending_target = ""
        """What to select once it is listed: a key, or the name of a local model."""

    def compose(self) -> ComposeResult:
        yield LineField(id="filter", placeholder="a name, a word, or owner/repo on the hub")
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield Static(id="titles")
                yield KeyedList(id="list")
                yield Static(id="none")
            yield Details()

    @property
    def _list(self) -> KeyedList:
        return self.query_one("#list", KeyedList)

    @property
    def _quants(self) -> KeyedList:
        return self.query_one("#quants", KeyedList)

    @property
    def _filter(self) -> LineField:
        return self.query_one("#filter", LineField)

    @property
    def is_typing(self) -> bool:
        return self.screen.focused is self._filter

    # The selection.

    @property
    def item(self) -> ModelItem | None:
        """The selected model, including what its survey has found."""
        item = self._items.get(self._list.key or "")
        return self._models.surveyed(item) if item is not None else None

    @property
    def quant(self) -> RankedFile | None:
        """The selected quantization; None while the list of models is focused."""
        item = self.item
        survey = self._models.survey_of(item) if item is not None else None
        key = self._quants.key
        if survey is None or key is None or self.screen.focused is not self._quants:
            return None
        return survey.options[int(key)] if int(key) < len(survey.options) else None

    @property
    def row(self) -> ModelRow | None:
        """The row of the selected model or quantization, if it is on this machine."""
        item, quant = self.item, self.quant
        if quant is None:
            return item.row if item is not None else None
        return next((row for row in self._models.rows if row.model.path == quant.variant.path), None)

    # Content.

    def fill(self, target: str = "") -> None:
        """Show the known models, and select `target` (a key, or a local model's name) once it is listed."""
        self._pending_target = target or self._pending_target
        query = self._filter.value
        self._items = self._models.items(query)
        layout = ColumnLayout(max(40, self._list.size.width - 1), self._current)
        self.query_one("#titles", Static).update(layout.heading())
        lines: list[ListLine] = []
        for group, items in groupby(self._items.values(), key=lambda item: item.group):
            lines.append(ListLine(Content.styled(("\n" if lines else "") + group.value, "bold $primary")))
            lines += [ListLine(layout.line(item), item.key) for item in items]
        self._list.show_lines(lines)
        for key, item in self._items.items():
            if self._pending_target == key or (
                item.group is ModelGroup.HERE and self._pending_target == item.name
            ):
                self._list.go_to(key)
                self._pending_target = ""
                break
        none = self.query_one("#none", Static)
        none.display = bool(query) and not self._items
        none.update(Content(f"No model matches {one_line(query, 40)!r}."))
        self.show_item()

    def show_item(self) -> None:
        item, models = self.item, self._models
        if item is not None:
            survey, waiting = models.survey_of(item), models.why_no_survey(item)
            self.query_one(Details).show(item, survey, offline=models.offline, waiting=waiting)
        else:
            self.query_one(Details).show(None, None)
        self.screen.refresh_bindings()

    @on(OptionList.OptionHighlighted, "#list")
    def _highlighted(self) -> None:
        self.show_item()
        if self._survey_timer is not None:
            self._survey_timer.stop()
        self._survey_timer = self.set_timer(_SURVEY_DELAY, lambda: self.post_message(self.SurveyWanted()))

    @on(LineField.Changed, "#filter")
    def _filter_changed(self) -> None:
        self.fill()

    @on(LineField.Submitted, "#filter")
    def focus_list(self) -> None:
        self.screen.set_focus(self._list)

    def open_filter(self) -> None:
        self._filter.add_class("-open")
        self.screen.set_focus(self._filter)

    def switch_pane(self) -> None:
        """Move from the list to the quantizations, or back."""
        to_quants = self.screen.focused is not self._quants
        self.screen.set_class(to_quants, "-reading")
        self.screen.set_focus(self._quants if to_quants else self._list)
        self.call_after_refresh(self.fill)  # the panes have been resized

    def step_back(self) -> bool:
        """Leave the filter or the quantizations; return whether either of them was active."""
        if self._filter.has_class("-open"):
            self._filter.value = ""
            self._filter.remove_class("-open")
            self.focus_list()
        elif self.screen.focused is not self._list:
            self.switch_pane()
        else:
            return False
        return True


class ModelsScreen(AppScreen[str | None]):
    """A screen for choosing a model to chat with. It returns the model's name, or None."""

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
        """current: name of the chat's model."""
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
        self.call_after_refresh(self._browser.fill)  # once the sizes of the panes are known

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
        """Start a pull, unless edgechat is offline or the user declines a model that does not fit."""
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
        """Ask whether to download a model even though it does not fit."""
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
        """Close the filter, leave the quantizations or leave the screen, whichever applies first."""
        if not self._browser.step_back():
            self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
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
