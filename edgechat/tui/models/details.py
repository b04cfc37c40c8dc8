"""What is known of the model one looks at, and its quantizations to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from edgechat.base.text import printable
from edgechat.tui.models import descriptions, table
from edgechat.tui.models.keyed_list import KeyedList, ListLine

if TYPE_CHECKING:
    from edgechat.planner.ranking.ranked_file import RankedFile
    from edgechat.planner.ranking.survey import SurveyFindings
    from edgechat.tui.models.items import ModelItem


class Details(Vertical):
    """Of one item: in words, with its memory as bars; below it the survey of its quantizations."""

    DEFAULT_CSS = """
    Details {
        padding: 0 1;
        & > VerticalScroll { height: auto; max-height: 65%; scrollbar-size-vertical: 1; }
        & > Vertical { height: 1fr; min-height: 4; }
        & #quants-title { margin-top: 1; height: auto; max-height: 4; }
    }
    """

    _asks = ""

    def compose(self) -> ComposeResult:
        """Words, and quantizations."""
        with VerticalScroll(can_focus=False):
            yield Static(id="about")
        with Vertical():
            yield Static(id="quants-title")
            yield KeyedList(id="quants")

    def show(
        self, item: ModelItem | None, survey: SurveyFindings | None, *, offline: str = "", waiting: str = ""
    ) -> None:
        """Show an item. survey: None while it is not known; `waiting` says why."""
        about = self.query_one("#about", Static)
        title = self.query_one("#quants-title", Static)
        rows = self.query_one("#quants", KeyedList)
        width = max(20, self.query_one(VerticalScroll).size.width - 1)
        about.update(descriptions.describe(item, width, offline) if item is not None else Content(""))
        if item is None or survey is None:
            rows.show_lines([])
            title.update(Content.styled(printable(waiting), "dim"))
            self._asks = ""
            return
        best = survey.chosen.quant if survey.chosen is not None else None
        head, lines = table.quant_lines(survey.options, max(20, rows.size.width - 1), best)
        title.update(head)
        keys = [key_of(one, number) for number, one in enumerate(survey.options)]
        rows.show_lines([ListLine(text, key) for text, key in zip(lines, keys, strict=True)])
        if item.asks != self._asks:
            self._asks = item.asks
            rows.go_to(next((key for key in keys if key.endswith(f":{best}")), keys[0]))


def key_of(option: RankedFile, number: int) -> str:
    """Return what tells the quantizations of one model apart."""
    return f"{number}:{option.quant}"
