"""A list of the local models, to choose one from in two keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from edgechat.base.text import one_line
from edgechat.tui.models.keyed_list import KeyedList, ListLine
from edgechat.tui.terminal.screens import AppDialog

_NUMBERED = 9


class ModelChooser(AppDialog[str | None]):
    """Local models by name, each with a few words; returns the chosen one, None if none was."""

    DEFAULT_CSS = """
    ModelChooser {
        align: center middle;
        background: $background;
        & > Vertical {
            width: 72; max-width: 100%; height: auto; max-height: 100%;
            border: round $primary; padding: 1 2; background: $background;
            border-title-style: bold; border-subtitle-style: dim;
        }
        KeyedList, KeyedList:focus { height: auto; max-height: 20; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Back", show=False),
        *(Binding(str(n), f"choose({n - 1})", "Choose", show=False) for n in range(1, _NUMBERED + 1)),
    ]

    def __init__(self, title: str, models: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._models = models

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            yield KeyedList()
        box.border_title = Content(self._title)
        box.border_subtitle = "Enter chooses · Esc closes"

    def on_mount(self) -> None:
        models = self.query_one(KeyedList)
        models.show_lines([self._line(at, name, about) for at, (name, about) in enumerate(self._models)])
        models.focus()

    def _line(self, index: int, name: str, about: str) -> ListLine:
        number = f"{index + 1} " if index < _NUMBERED else "  "
        text = Content.assemble((number, "dim"), one_line(name, 44), (f"  {one_line(about, 24)}", "dim"))
        return ListLine(text, str(index))

    @on(KeyedList.OptionSelected)
    def _selected(self, event: KeyedList.OptionSelected) -> None:
        self.action_choose(event.option_index)

    def action_choose(self, index: int) -> None:
        if index < len(self._models):
            self.dismiss(self._models[index][0])
