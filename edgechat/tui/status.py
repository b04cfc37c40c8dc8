"""The footer: which model, how fast, how much of its context is used; and below it the keys."""

from __future__ import annotations

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

from edgechat.text import by_drafts, one_line

_NEARLY_FULL = 0.85


class StatusBar(Widget):
    """Model at the left; tokens per second and context at the right."""

    DEFAULT_CSS = """
    StatusBar { height: 1; padding: 0 1; }
    """

    model = reactive("")
    speed = reactive(0.0)
    """Tokens per second of the reply that is written, or was last; 0 before the first."""
    speedup = reactive(0.0)
    """What drafts made of the speed of the last reply; 0 where nothing was drafted."""
    used = reactive(0)
    """Tokens of the context that the conversation takes."""
    context = reactive(0)

    def render(self) -> RenderResult:
        """See Textual."""
        width = self.size.width
        right = self._right(wide=width >= 70)
        model = one_line(self.model, max(10, width - len(right) - 2))
        gap = " " * max(1, width - len(model) - len(right))
        return Content.assemble((model, "bold"), gap, right)

    def _right(self, *, wide: bool) -> Content:
        parts: list[Content] = []
        if self.speed:
            gain = by_drafts(self.speedup, 1) if wide else ""
            parts.append(Content(f"{self.speed:.1f} tok/s" + f", {gain}" * bool(gain)))
        if self.context:
            used = min(self.used, self.context)
            share = used / self.context
            count = (
                f"{used:,} of {self.context:,} tokens ({share:.0%})" if wide else f"{share:.0%} of context"
            )
            parts.append(Content(count).stylize("bold" if share > _NEARLY_FULL else ""))
        return Content("  ·  ").join(parts).stylize("dim")


class KeyBar(Widget):
    """The keys that do something now."""

    DEFAULT_CSS = """
    KeyBar { height: 1; padding: 0 1; }
    """

    def on_mount(self) -> None:
        """Follow the bindings as they change."""
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def _bindings_changed(self, _: Screen[object]) -> None:
        self.refresh()

    def render(self) -> RenderResult:
        """See Textual."""
        shown: dict[str, Content] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and active.enabled and binding.action not in shown:
                key = (self.app.get_key_display(binding), "bold")
                shown[binding.action] = Content.assemble(key, (f" {binding.description}", "dim"))
        return _joined(list(shown.values()), self.size.width)


def _joined(parts: list[Content], width: int) -> Content:
    """Join what fits, a little closer where that helps."""
    for between in ("   ", "  "):
        joined = Content(between).join(parts)
        if joined.cell_length <= width:
            return joined
    return _joined(parts[:-1], width) if parts else Content("")
