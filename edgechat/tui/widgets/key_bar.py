"""The bottom line of a screen: the keys that are bound now."""

from __future__ import annotations

from textual.app import RenderResult
from textual.content import Content
from textual.screen import Screen
from textual.widget import Widget

_LOW_PRIORITY = ("newline", "search", "engine_room")
"""Actions whose keys are dropped first if there is not enough room."""
_HELP, _QUIT = ("app.help", "help"), ("app.quit", "quit")


class KeyBar(Widget):
    """The keys that are bound now; a click on one presses it."""

    DEFAULT_CSS = """
    KeyBar {
        height: 1; padding: 0 1;
        link-color: $foreground; link-style: none; link-background: $background;
        link-color-hover: $foreground; link-style-hover: underline; link-background-hover: $background;
    }
    """

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, _: Screen[object]) -> None:
        self.refresh()

    def render(self) -> RenderResult:
        shown: dict[str, Content] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and active.enabled and binding.action not in shown:
                key = (self.app.get_key_display(binding), "bold")
                label = Content.assemble(key, (f" {binding.description}", "dim"))
                shown[binding.action] = label.stylize(f"@click=press({binding.key!r})")
        # Help always has room, since it lists the keys that have none. Quit is last, where no click on
        # another key hits it.
        help_key, quit_key = (
            [shown.pop(name) for name in names if name in shown] for names in (_HELP, _QUIT)
        )
        first = {name: label for name, label in shown.items() if name not in _LOW_PRIORITY}
        rest = [*(first | shown).values()]
        width = self.size.width
        return _fitting([*rest, *help_key, *quit_key], width) or _join(rest, help_key, width)

    async def action_press(self, keys: str) -> None:
        self.app.simulate_key(keys.partition(",")[0])


def _join(parts: list[Content], last: list[Content], width: int) -> Content:
    """Join the parts that fit, and then the last one."""
    return _fitting([*parts, *last], width) or (_join(parts[:-1], last, width) if parts else Content(""))


def _fitting(parts: list[Content], width: int) -> Content | None:
    """Join parts, with a narrower gap if that helps; return None if they do not fit."""
    for gap in ("   ", "  "):
        joined = Content(gap).join(parts)
        if joined.cell_length <= width:
            return joined
    return None
