"""Sheet: the widget that shows a piece of the transcript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from edgechat.tui.markdown.blocks import COPY_CODE, RenderedLine

_STYLES = {
    "strong": "text-style: bold",
    "em": "text-style: italic",
    "strike": "text-style: strike",
    "code": "color: $secondary",
    "link": "text-style: underline",
    "citation": "color: $primary; text-style: underline",
    "unfounded": "color: $warning; text-style: italic",
    "maths": "text-style: italic",
    "unfinished": "color: $secondary",
    "heading": "text-style: bold; color: $primary",
    "heading-1": "text-style: bold; color: $primary",
    "heading-2": "text-style: bold; color: $primary",
    "heading-3": "text-style: bold; color: $secondary",
    "heading-4": "text-style: bold",
    "heading-5": "text-style: bold italic",
    "marker": "color: $primary",
    "current": "color: $accent",
    "action": "text-style: underline; color: $primary",
    "faint": "text-style: dim",
    "edge": "color: $border-blurred",
    "match": "text-style: underline; color: $warning",
    "here": "text-style: reverse; color: $warning",
    "warning": "color: $warning",
    "error": "color: $error",
    "code-block": "background: $panel",
    "code-comment": "text-style: dim italic",
    "code-keyword": "color: $accent",
    "code-string": "color: $success",
    "code-number": "color: $warning",
    "code-name": "color: $primary",
    "code-builtin": "color: $secondary",
    "tinted": "background: $surface",
    "code-deleted": "color: $error",
    "code-inserted": "color: $success",
}
"""Component classes with their styles. Spans refer to them by names such as '.strong'."""


class Sheet(Widget):
    """Lines of text, laid out at any width, that can be selected with the mouse.

    Subclasses return the lines from `lay_out`, with spans that name component classes ('.strong'), and
    call `changed` whenever the lines change.
    """

    DEFAULT_CSS = """
    Sheet {
        width: 1fr;
        height: auto;
        padding: 1 0 0 0;

        &:nocolor .code { text-style: underline; }
        &:nocolor .heading-3 { text-style: bold underline; }
    }
    """ + "".join(f"Sheet .{name} {{ {style}; }}\n" for name, style in _STYLES.items())

    COMPONENT_CLASSES: ClassVar[set[str]] = set(_STYLES)
    GROUND: ClassVar[str] = ""
    """Component class whose background fills the lines, or '' for none."""

    @dataclass
    class CodeCopied(Message):
        """A request to copy code to the clipboard."""

        code: str

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[RenderedLine] = []
        self._width = 0
        self._drawn: dict[int, Strip] = {}

    def lay_out(self, width: int) -> list[RenderedLine]:
        """Return all lines at a width."""
        raise NotImplementedError

    def changed(self) -> None:
        """Lay out the lines again, and redraw them from the first difference onwards."""
        if not self._width:
            return
        old = self._lines
        self._lines = self.lay_out(self._width)
        pairs = enumerate(zip(old, self._lines, strict=False))
        first = next((y for y, (was, now) in pairs if _differ(was, now)), min(len(old), len(self._lines)))
        self._drawn = {y: strip for y, strip in self._drawn.items() if y < first}
        if len(old) == len(self._lines):
            self.refresh(Region(0, first, self.size.width, len(old) - first))
        else:
            self.refresh(layout=True)

    def redraw(self) -> None:
        """Redraw all lines without laying them out again."""
        self._drawn = {}
        self.refresh()

    def lay_out_again(self) -> None:
        """Lay out all lines when their height is next requested."""
        self._width = 0

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        width = max(1, width)  # briefly 0 while panels change
        if width != self._width:
            self._width, self._lines, self._drawn = width, self.lay_out(width), {}
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width, self.visual_style.rich_style)
        style = self.get_visual_style(self.GROUND) if self.GROUND else self.visual_style
        selected = self.text_selection
        strip = self._drawn.get(y) if selected is None else None
        if strip is None:
            strip = self._draw(self._lines[y], y, style, selected)
            if selected is None:
                self._drawn[y] = strip
        return strip.crop_extend(0, self.size.width, style.rich_style).apply_offsets(0, y)

    def _draw(self, line: RenderedLine, y: int, style: Style, selected: Selection | None) -> Strip:
        content = line.content
        if selected is not None and (span := selected.get_span(y)) is not None:
            start, end = span
            content = content.stylize(
                Style.from_rich_style(self.selection_style),
                max(start, line.lead),
                _copied_end(line, end),
            )
        rendered = content.render(style, end="", parse_style=self._named_style)
        return Strip([Segment(text, found.rich_style) for text, found in rendered], content.cell_length)

    def _named_style(self, name: str | Style) -> Style:
        if isinstance(name, Style):
            return name
        if not name.startswith("."):
            return Style.null()
        style, rules = self.get_visual_style(name[1:], partial=True), self.get_component_styles(name[1:])
        # Textual's partial styles omit reverse video and opaque backgrounds.
        if rules.text_style.reverse:
            style += Style(reverse=True)
        return style + Style(background=rules.background) if rules.has_rule("background") else style

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text with folded lines joined, and without bars, bullets and padding."""
        text = ""
        for y, line in enumerate(self._lines):
            if (span := selection.get_span(y)) is not None:
                start, end = span
                joint = line.joint if text else ""
                text += joint + line.content.plain[max(start, line.lead) : _copied_end(line, end)]
        return text, "\n"

    def on_click(self, event: events.Click) -> None:
        """Copy the code if its "copy" label was clicked."""
        offset = event.get_content_offset(self)
        if event.style.meta.get(COPY_CODE) and offset is not None and offset.y < len(self._lines):
            event.stop()
            self.post_message(self.CodeCopied(self._lines[offset.y].code))

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def notify_style_update(self) -> None:
        self._drawn = {}
        super().notify_style_update()


def _differ(was: RenderedLine, now: RenderedLine) -> bool:
    return was is not now and not (was.lead == now.lead and was.content.is_same(now.content))


def _copied_end(line: RenderedLine, end: int) -> int:
    """Return where the copied part of a line ends. end: where the selection ends; -1 for the whole line."""
    last = len(line.content) - line.trail
    return last if end == -1 else min(end, last)
