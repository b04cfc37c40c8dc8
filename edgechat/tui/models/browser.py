"""The list of models with a filter above it, and beside or below it the details of the selected model."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import OptionList, Static

from edgechat.base.text import one_line
from edgechat.tui.models.details import Details
from edgechat.tui.models.items import ModelGroup, ModelItem
from edgechat.tui.models.table import ColumnLayout
from edgechat.tui.widgets.fields import LineField
from edgechat.tui.widgets.lists import KeyedList, ListLine

if TYPE_CHECKING:
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.tui.models.known_models import KnownModels

_SURVEY_DELAY = 0.15
"""Seconds that the cursor stays on a model before its quantizations are compared with the machine."""


class ModelBrowser(Vertical):
    """Two panes, one of which has the focus, and a filter above them while it is open."""

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
        """The cursor has stayed on a model: its quantizations are worth comparing with the machine."""

    def __init__(self, models: KnownModels, current: str | None) -> None:
        """current: the name of the model of the chat."""
        super().__init__()
        self._models, self._current = models, current
        self._items: dict[str, ModelItem] = {}
        self._survey_timer: Timer | None = None
        self._pending_target = ""
        """Where the cursor is to go once that line exists: its key, or the name of a local model."""

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
        """Whether the filter has the focus."""
        return self.screen.focused is self._filter

    # The selection.

    @property
    def item(self) -> ModelItem | None:
        """The selected model, with what its survey has found."""
        item = self._items.get(self._list.key or "")
        return self._models.surveyed(item) if item is not None else None

    @property
    def quant(self) -> RankedFile | None:
        """The selected quantization; None while the list of models has the focus."""
        item = self.item
        survey = self._models.survey_of(item) if item is not None else None
        key = self._quants.key
        if survey is None or key is None or self.screen.focused is not self._quants:
            return None
        return survey.options[int(key)] if int(key) < len(survey.options) else None

    @property
    def row(self) -> ModelRow | None:
        """The selected model or quantization, if it is on this machine."""
        item, quant = self.item, self.quant
        if quant is None:
            return item.row if item is not None else None
        return next((row for row in self._models.rows if row.model.path == quant.variant.path), None)

    # What is shown.

    def fill(self, target: str = "") -> None:
        """Show what is known, and select `target` (a key, or a local model's name) once it is listed."""
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
        """Show what is known of the selected model."""
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
        """Show the filter, and give it the focus."""
        self._filter.add_class("-open")
        self.screen.set_focus(self._filter)

    def switch_pane(self) -> None:
        """Go from the list to the quantizations, or back."""
        to_quants = self.screen.focused is not self._quants
        self.screen.set_class(to_quants, "-reading")
        self.screen.set_focus(self._quants if to_quants else self._list)
        self.call_after_refresh(self.fill)  # the panes have other sizes now

    def step_back(self) -> bool:
        """Leave the filter, or the other pane; return whether there was anything to leave."""
        if self._filter.has_class("-open"):
            self._filter.value = ""
            self._filter.remove_class("-open")
            self.focus_list()
        elif self.screen.focused is not self._list:
            self.switch_pane()
        else:
            return False
        return True
