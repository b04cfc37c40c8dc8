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
            parts.append(Content("thinks" if self.think else "no thinking"))
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
