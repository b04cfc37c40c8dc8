"""Key bar: shows the currently bound keys on the bottom line of a screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from textual.app import App, RenderResult
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

_LEAST_USEFUL = ("quit", "newline", "engine_room", "search", "thoughts", "complete", "retry")
"""Actions whose keys are the first to be left out when space is short."""
_LAST = ("help", "quit")
"""Actions whose keys come last."""


class _Key(NamedTuple):
    """A key shown in the bar."""

    group: int
    """0 if bound by the focused widget, 1 if by the screen, 2 if by the app."""
    action: str
    is_escape: bool
    label: Content


class KeyBar(Widget):
    """The currently bound keys, in groups. Clicking one presses it."""

    DEFAULT_CSS = """
    KeyBar {
        height: 1; padding: 0 2;
        link-color: $foreground; link-style: none; link-background: $background;
        link-color-hover: $foreground; link-style-hover: underline; link-background-hover: $background;
    }
    """

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, _: Screen[object]) -> None:
        self.refresh()

    def render(self) -> RenderResult:
        return _fitting(self._keys(), self.size.width)

    def _keys(self) -> list[_Key]:
        keys: dict[str, _Key] = {}
        for node, binding, enabled, _ in self.screen.active_bindings.values():
            if not binding.show or not enabled:
                continue
            action = binding.action.rpartition(".")[2]
            key = (self.app.get_key_display(binding), "bold")
            label = Content.assemble(key, (f" {binding.description}", "dim"))
            label = label.stylize(f"@click=press({binding.key!r})")
            group = 2 if isinstance(node, App) or action in _LAST else 1 if isinstance(node, Screen) else 0
            # The focused widget comes first, and may bind its own key to one of the screen's actions.
            keys.setdefault(binding.description, _Key(group, action, binding.key == "escape", label))
        return sorted(
            keys.values(), key=lambda key: (key.group, key.action in _LAST and _LAST.index(key.action))
        )

    async def action_press(self, keys: str) -> None:
        self.app.simulate_key(keys.partition(",")[0])


def _fitting(keys: Sequence[_Key], width: int) -> Content:
    """Join as many keys as fit, with narrower gaps if that helps. Help is the last to be left out."""
    keys = list(keys)
    while keys:
        for gap, rule in (("  ", "  │  "), ("  ", " │ "), ("  ", "  ")):
            line = Content.assemble(*_joined(keys, gap, rule))
            if line.cell_length <= width:
                return line
        keys.remove(max(keys, key=lambda key: _dispensability(key, keys)))
    return Content("")


def _dispensability(key: _Key, keys: Sequence[_Key]) -> int:
    if key.action == "help":
        return -1
    if key.is_escape:
        return 0
    if key.action in _LEAST_USEFUL:
        return len(keys) + len(_LEAST_USEFUL) - _LEAST_USEFUL.index(key.action)
    return keys.index(key)


def _joined(keys: Iterable[_Key], gap: str, rule: str) -> Iterable[Content | tuple[str, str]]:
    for number, (_, group) in enumerate(groupby(keys, lambda key: key.group)):
        if number:
            yield (rule, "$border-blurred")
        yield Content(gap).join(key.label for key in group)
