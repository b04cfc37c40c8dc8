"""The details of the selected model, and its quantizations to choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from edgechat.base.text import printable
from edgechat.tui.models.descriptions import describe
from edgechat.tui.models.table import quant_lines
from edgechat.tui.widgets.lists import KeyedList, ListLine

if TYPE_CHECKING:
    from edgechat.planner.ranking.survey import SurveyFindings
    from edgechat.tui.models.items import ModelItem


class Details(Vertical):
    """A description of one model, with its memory as bars; below it the list of its quantizations."""

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
    """Of the model whose quantizations are listed."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield Static(id="about")
        with Vertical():
            yield Static(id="quants-title")
            yield KeyedList(id="quants")

    def show(
        self, item: ModelItem | None, survey: SurveyFindings | None, *, offline: str = "", waiting: str = ""
    ) -> None:
        """Show a model. survey: None while there is none; `waiting` says why."""
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
