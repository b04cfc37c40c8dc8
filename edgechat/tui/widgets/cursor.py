"""The line at the cursor of a list, in one colour or in reverse video."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget
from textual.widgets import OptionList


def cursor_style(widget: Widget, part: str) -> Style:
    """Return the style of a part of a widget.

    As `Widget.get_visual_style`, which forgets reverse video. That needs no line under the text.
    """
    style = widget.get_visual_style(part)
    is_reverse = widget.get_component_styles(part).text_style.reverse
    return style + Style(reverse=True, underline=False) if is_reverse else style


class CursorLine(OptionList):
    """Draws the line at the cursor in one colour: others may not be legible on its background."""

    def render_line(self, y: int) -> Strip:
        strip = super().render_line(y)
        index = next((part.style.meta.get("option") for part in strip if part.style is not None), None)
        if index is None or index != self.highlighted:
            return strip
        style = cursor_style(self, "option-list--option-highlighted").rich_style
        plain = RichStyle(
            color=style.color,
            bgcolor=style.bgcolor,
            underline=style.underline,
            reverse=style.reverse,
            dim=False,
        )
        return Strip([Segment(text, (style or plain) + plain) for text, style, _ in strip], strip.cell_length)
