"""The footer: which model, how fast, and how much of its context is used."""

from __future__ import annotations

from textual.app import RenderResult
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from edgechat.base.text import by_drafts, one_line

_NEARLY_FULL = 0.85


class StatusBar(Widget):
    """Model at the left; tokens per second and context at the right."""

    DEFAULT_CSS = """
    StatusBar { height: 1; padding: 0 2; }
    """

    model = reactive("")
    speed = reactive(0.0)
    """Tokens per second of the present or the last reply; 0 before the first."""
    speedup = reactive(0.0)
    """The speedup of the last reply by drafts; 0 if nothing was drafted."""
    used: reactive[int | None] = reactive(0)
    """Tokens of the context that the conversation takes; None if unknown."""
    context = reactive(0)
    think: reactive[bool | None] = reactive(None)
    """Whether thinking is switched on or off; None if neither."""
    has_tools = reactive(False)
    """Whether the model may call tools."""
    adapters: reactive[tuple[str, ...]] = reactive(())
    """The LoRA adapters that are applied."""
    pulling = reactive("")
    """The downloads in progress."""

    def render(self) -> RenderResult:
        width = self.size.width
        right = self._right(wide=width >= 70)
        model = one_line(" + ".join((self.model, *self.adapters)), max(10, width - len(right) - 2))
        left = Content.assemble((model, "bold"))
        if self.pulling:
            room = width - len(model) - len(right) - 7
            pulling = one_line(self.pulling, room) if room > 12 else ""
            left = Content.assemble(left, (f"  ↓ {pulling}" * bool(pulling), "$primary"))
        gap = " " * max(1, width - len(left) - len(right))
        return Content.assemble(left, gap, right)

    def _right(self, *, wide: bool) -> Content:
        parts: list[Content] = []
        if self.has_tools:
            parts.append(Content("tools on"))
        if self.think is not None:
            parts.append(Content(f"thinking {'on' if self.think else 'off'}"))
        if self.speed:
            gain = by_drafts(self.speedup, 1) if wide else ""
            parts.append(Content(f"{self.speed:.1f} tok/s" + f", {gain}" * bool(gain)))
        if self.context and self.used is not None:
            used = min(self.used, self.context)
            share = used / self.context
            usage = f"{share:.0%} of context"
            if wide:
                usage = f"{used:,} of {self.context:,} tokens ({share:.0%})"
            parts.append(Content(usage).stylize("bold" if share > _NEARLY_FULL else ""))
        return Content("  ·  ").join(parts).stylize("dim")
