"""What the models screen shows of models: the list, and beside or below it what is known of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import OptionList, Static

from edgechat.base.text import one_line
from edgechat.tui.models.details import Details, key_of
from edgechat.tui.models.items import ModelGroup, ModelItem
from edgechat.tui.models.keyed_list import KeyedList, ListLine
from edgechat.tui.models.table import ColumnLayout
from edgechat.tui.widgets.line_field import LineField

if TYPE_CHECKING:
    from edgechat.planner.listing import ModelRow
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.tui.models.known_models import KnownModels

LOOK = 0.15
"""Seconds that one stays at a line before its quantizations are held against the machine."""


class ModelBrowser(Vertical):
    """Two panes, of which one has the keys; a box for a filter above them while it is open."""

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
        & Details { width: 44%; height: 1fr; border-left: solid $primary; }
    }
    """

    class Look(Message):
        """One stays at a line: now it is worth a closer look."""

    def __init__(self, models: KnownModels, current: str | None) -> None:
        """current: the name of the model of the chat."""
        super().__init__()
        self._models, self._current = models, current
        self._items: dict[str, ModelItem] = {}
        self._looking: Timer | None = None
        self._wanted = ""  # the line to go to, once it is there

    def compose(self) -> ComposeResult:
        """The filter, the list, the details."""
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
        """Whether the filter has the keys."""
        return self.screen.focused is self._filter

    # What one is at.

    @property
    def item(self) -> ModelItem | None:
        """The line of the list, with what a closer look has found."""
        key = self._list.key
        item = self._items.get(key) if key is not None else None
        return self._models.closely(item) if item is not None else None

    @property
    def quant(self) -> RankedFile | None:
        """The quantization; None where one is not among them."""
        item = self.item
        survey = self._models.survey_of(item) if item is not None else None
        if survey is None or self.screen.focused is not self._quants:
            return None
        return next((one for n, one in enumerate(survey.options) if key_of(one, n) == self._quants.key), None)

    @property
    def row(self) -> ModelRow | None:
        """The model or the quantization, where that is here."""
        item, quant = self.item, self.quant
        if quant is None:
            return item.row if item is not None else None
        rows = self._models.known.rows
        return next((row for row in rows if row.model.path == quant.variant.path), None)

    # What is shown.

    def fill(self, go_to: str = "") -> None:
        """Show what is known now. go_to: a key, or the name of what is here: a line that may come later."""
        self._wanted = go_to or self._wanted
        wanted = self._filter.value
        self._items = self._models.items(wanted)
        table = ColumnLayout(max(40, self._list.size.width - 1), self._current)
        self.query_one("#titles", Static).update(table.heading())
        self._list.show_lines(_lines(list(self._items.values()), table))
        for key, item in self._items.items():
            if self._wanted == key or (item.group is ModelGroup.HERE and self._wanted == item.name):
                self._list.go_to(key)
                self._wanted = ""
                break
        none = self.query_one("#none", Static)
        none.display = bool(wanted) and not self._items
        none.update(Content(f"No model matches {one_line(wanted, 40)!r}."))
        self.show_item()

    def show_item(self) -> None:
        """Show what is known of the line one is at."""
        item, known = self.item, self._models
        if item is not None:
            survey, waiting = known.survey_of(item), known.why_no_survey(item)
            self.query_one(Details).show(item, survey, offline=known.offline, waiting=waiting)
        else:
            self.query_one(Details).show(None, None)
        self.screen.refresh_bindings()

    @on(OptionList.OptionHighlighted, "#list")
    def _moved(self) -> None:
        self.show_item()
        if self._looking is not None:
            self._looking.stop()
        self._looking = self.set_timer(LOOK, lambda: self.post_message(self.Look()))

    @on(LineField.Changed, "#filter")
    def _typed(self) -> None:
        self.fill()

    @on(LineField.Submitted, "#filter")
    def to_list(self) -> None:
        """Give the list the keys."""
        self.screen.set_focus(self._list)

    def open_filter(self) -> None:
        """Let one type what to look for."""
        self._filter.add_class("-open")
        self.screen.set_focus(self._filter)

    def other_pane(self) -> None:
        """Go from the list to the quantizations, or back."""
        to_quants = self.screen.focused is not self._quants
        self.screen.set_class(to_quants, "-reading")
        self.screen.set_focus(self._quants if to_quants else self._list)
        self.call_after_refresh(self.fill)  # the panes have other sizes now

    def step_back(self) -> bool:
        """Leave the filter, or the other pane; say whether there was anything to leave."""
        if self._filter.has_class("-open"):
            self._filter.value = ""
            self._filter.remove_class("-open")
            self.to_list()
        elif self.screen.focused is not self._list:
            self.other_pane()
        else:
            return False
        return True


def _lines(found: Sequence[ModelItem], table: ColumnLayout) -> list[ListLine]:
    lines: list[ListLine] = []
    section: ModelGroup | None = None
    for one in found:
        if one.group is not section:
            lines.append(ListLine(Content.styled(("\n" if lines else "") + one.group.value, "bold")))
            section = one.group
        lines.append(ListLine(table.line(one), one.key))
    return lines
