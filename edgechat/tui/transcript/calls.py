"""A call of a tool in the transcript: a line, and unfolded its arguments and its result."""

from __future__ import annotations

from textual.content import Content

from edgechat.base.text import one_line
from edgechat.chat.records import ToolUse
from edgechat.chat.reply.calls import OUTCOMES, arguments_in_a_line, name_of
from edgechat.tools.tool import inert, shown_arguments
from edgechat.tui.markdown.blocks import RenderedLine
from edgechat.tui.transcript.pieces import FoldedPiece, behind_bar, duration

_WRONG = ("failed", "refused", "stopped")


class CallPiece(FoldedPiece):
    """A call, folded until the user unfolds it."""

    def __init__(self, use: ToolUse, *, ended: bool = False) -> None:
        """ended: whether its reply has ended, so that nothing becomes of an open call any more."""
        super().__init__()
        self._ended = ended
        self._running = False
        self.show(use)

    @property
    def use(self) -> ToolUse:
        """The call, as it was shown last."""
        return self._use

    def show(self, use: ToolUse, *, running: bool = False) -> None:
        """Show what has become of it."""
        self._use, self._running = use, running
        self.text = "\n".join(filter(None, [shown_arguments(use.arguments), inert(use.result)]))
        self._changed()

    def finish(self) -> None:
        """Show that its reply has ended."""
        self._ended = True
        self._changed()

    def heading(self, width: int) -> Content:
        """See `FoldedPiece`."""
        use, end = self._use, self._state
        name, mark = name_of(use), "▾" if self.unfolded else "▸"
        room = width - len(f"{mark} ƒ {name}() · {end}")
        start = Content.assemble(f"{mark} ƒ ", (name, ".code"))
        arguments = Content(f"({arguments_in_a_line(use, room)})" if room > 8 else "").stylize(".faint")
        style = ".warning" if use.outcome in _WRONG else ".faint"
        return Content.assemble(start, arguments, (f" · {end}", style))

    @property
    def _state(self) -> str:
        use = self._use
        if use.outcome == "open" and not self._ended:
            return "running" if self._running else "asked for"
        if use.outcome == "answered":
            return duration(use.seconds)
        return OUTCOMES[use.outcome]

    def body(self, width: int) -> list[RenderedLine]:
        """See `FoldedPiece`."""
        lines = behind_bar(
            Content(shown_arguments(self._use.arguments)).stylize(".code"), width, ".faint", "│ "
        )
        if self._use.result:
            result = Content(inert(self._use.result).strip("\n"))
            lines += behind_bar(Content("─ result").stylize(".faint"), width, ".faint", "│ ")
            lines += behind_bar(result, width, ".faint", "│ ")
        for image in self._use.images:
            shown = Content(f"[{one_line(image.name)}, {image.size}]").stylize(".faint")
            lines += behind_bar(shown, width, ".faint", "│ ")
        return lines
