"""The footer: which model, how fast, how much of its context is used; and below it the keys."""

from __future__ import annotations

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget

from edgechat.text import by_drafts, one_line

_NEARLY_FULL = 0.85
_LATER = ("newline", "search", "engine_room")
"""What keys do that are left out first where there is no room."""


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
    think: reactive[bool | None] = reactive(None)
    """How the thinking is switched; None: it is not."""
    pulling = reactive("")
    """What is being downloaded, and how far."""

    def render(self) -> RenderResult:
        """See Textual."""
        width = self.size.width
        right = self._right(wide=width >= 70)
        model = one_line(self.model, max(10, width - len(right) - 2))
        left = Content.assemble((model, "bold"))
        if self.pulling:
            room = width - len(model) - len(right) - 7
            pulling = one_line(self.pulling, room) if room > 12 else ""
            left = Content.assemble(left, (f"  ↓ {pulling}" * bool(pulling), "$primary"))
        gap = " " * max(1, width - len(left) - len(right))
        return Content.assemble(left, gap, right)

    def _right(self, *, wide: bool) -> Content:
        parts: list[Content] = []
        if self.think is not None:
            parts.append(Content("thinks" if self.think else "thinks not"))
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
    """The keys that do something now; a click on one does it."""

    DEFAULT_CSS = """
    KeyBar {
        height: 1; padding: 0 1;
        link-color: $foreground; link-style: none; link-background: $background;
        link-color-hover: $foreground; link-style-hover: underline; link-background-hover: $background;
    }
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
                label = Content.assemble(key, (f" {binding.description}", "dim"))
                shown[binding.action] = label.stylize(f"@click=press({binding.key!r})")
        first = {name: label for name, label in shown.items() if name not in _LATER}
        # Help always has a place, for it tells of all that has none.
        help_key = first.pop("app.help", first.pop("help", None))
        last = [help_key] if help_key is not None else []
        rest = [label for name, label in (first | shown).items() if name not in ("app.help", "help")]
        return _joined(rest, last, self.size.width)

    async def action_press(self, keys: str) -> None:
        """Do what a key does."""
        key = keys.partition(",")[0]
        self.app.simulate_key(key)


def _joined(parts: list[Content], last: list[Content], width: int) -> Content:
    """Join what fits, a little closer where that helps, and then the last one."""
    for between in ("   ", "  "):
        joined = Content(between).join([*parts, *last])
        if joined.cell_length <= width:
            return joined
    return _joined(parts[:-1], last, width) if parts else Content("")
