"""Model switcher: typing part of a model's name and pressing Enter switches to that model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.fuzzy import FuzzySearch
from textual.widgets import OptionList, Static

from edgechat.base.text import one_line
from edgechat.tui.widgets.dialogs import AppDialog
from edgechat.tui.widgets.fields import LineField
from edgechat.tui.widgets.lists import KeyedList, ListLine


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model offered by name."""

    name: str
    note: str = ""
    is_here: bool = True
    """Whether it is on this machine; otherwise it would be downloaded."""


class ModelSwitcher(AppDialog[ModelName | None]):
    """A dialog for choosing a model to chat with or to download."""

    DEFAULT_CSS = """
    ModelSwitcher {
        align: center top;
        background: $background;
        & > .frame { width: 76; max-height: 90%; margin-top: 2; background: $background; }
        & LineField, & LineField:focus { height: 1; border: none; padding: 0; background: $background; }
        & KeyedList, & KeyedList:focus { max-height: 16; margin-top: 1; }
        & #none { height: auto; margin-top: 1; }
    }
    """
    AUTO_FOCUS = "LineField"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f5", "dismiss", "Back", show=False),
        Binding("down", "move('cursor_down')", "Down", show=False, priority=True),
        Binding("up", "move('cursor_up')", "Up", show=False, priority=True),
        Binding("pagedown", "move('page_down')", "Page down", show=False, priority=True),
        Binding("pageup", "move('page_up')", "Page up", show=False, priority=True),
    ]

    def __init__(self, models: Sequence[ModelName], current: str | None, title: str = "") -> None:
        """models: most recently used first. current: name of the current model.

        title: what the model is for, shown instead of the current model's name.
        """
        super().__init__()
        self._models, self._current, self._title = models, current, title
        self._search = FuzzySearch()

    def compose(self) -> ComposeResult:
        with Vertical(classes="frame") as box:
            yield LineField(placeholder="a model's name, or a part of it")
            yield KeyedList(id="models")
            yield Static("No model matches. Ctrl+O lists all, and finds others on the hub.", id="none")
        current = (
            f"Current model: {one_line(self._current, 50)}" if self._current else "No model is loaded yet"
        )
        box.border_title = Content(self._title or current)
        box.border_subtitle = "Enter chooses · Esc closes"

    def on_mount(self) -> None:
        self._show()

    def on_resize(self, _: events.Resize) -> None:
        self.call_after_refresh(self._show)

    @property
    def _list(self) -> KeyedList:
        return self.query_one(KeyedList)

    @on(LineField.Changed)
    def _show(self) -> None:
        models = self._matching()
        self._list.show_lines([ListLine(self._line(model), model.name) for model in models])
        others = (model.name for model in models if model.name != self._current)
        self._list.go_to(next(others, self._current or ""))
        self._list.display = bool(models)
        self.query_one("#none").display = not models

    def _matching(self) -> list[ModelName]:
        """Return the models matching the typed text, best first; if it is empty, all in their usual order."""
        query = self.query_one(LineField).value.strip()
        if not query:
            return list(self._models)
        scores = {model.name: self._search.match(query, model.name)[0] for model in self._models}
        matching = [model for model in self._models if scores[model.name] > 0]
        return sorted(matching, key=lambda model: -scores[model.name])

    def _line(self, model: ModelName) -> Content:
        width = max(30, self._list.size.width - 1)
        name = one_line(model.name, 40)
        mark = "● " if model.name == self._current else "  " if model.is_here else "↓ "
        note = one_line(model.note, max(1, width - len(name) - 5))
        return Content.assemble((mark, "$primary"), name, (f"   {note}", "dim"))

    def action_move(self, how: str) -> None:
        getattr(self._list, f"action_{how}")()

    @on(LineField.Submitted)
    @on(OptionList.OptionSelected)
    def _choose(self) -> None:
        key = self._list.key
        if key is not None and self._list.display:
            self.dismiss(next(model for model in self._models if model.name == key))
