"""Scrolling transcript. Pieces far from the screen have a height but no widget."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.layout import DockArrangeResult, WidgetPlacement
from textual.message import Message
from textual.scrollbar import ScrollBar
from textual.widget import Widget
from textual.widgets import Static

from edgechat.tui.transcript.pieces import Finder, FoldedPiece, Piece, Place, ThoughtPiece

_FAR = 10**9
_WIDEST, _MARGIN = 100, 2
"""Widths of the text and the margin, in cells. They must match the style sheet below."""


class Transcript(VerticalScroll):
    """Shows pieces from top to bottom, and stays scrolled to the end unless the reader has scrolled up.

    While it is focused, one turn is current; keys act on that turn through the screen's actions.

    The pieces within a screen's height of the visible ones are mounted, as a contiguous range
    `[first, last)`. If an estimated height proves wrong, the layout scrolls along with the text, so that
    what is being read stays in place.
    """

    DEFAULT_CSS = """
    Transcript {
        align-horizontal: center;
        scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;

        & > Sheet { max-width: 104; border-left: blank; padding: 1 2 0 1; }
        & > FooterSheet, & > PassagesSheet { padding: 0 2 0 1; }
        & > Sheet.-current { border-left: outer $accent; }
        & > UserSheet, & > UserSheet.-current { border-left: none; padding: 1 0 0 0; }
        & > Sheet.-left-out { text-style: dim; }
        & > .filler { height: 0; width: 1fr; max-width: 104; }
    }
    """
    FOCUS_ON_CLICK = False

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "Turn up", show=False),
        Binding("down,j", "step(1)", "Turn down", show=False),
        Binding("home", "step(-1000000)", "First turn", show=False),
        Binding("end", "last", "Last turn", show=False),
        Binding("pageup", "page_up", "Page up", show=False),
        Binding("pagedown", "page_down", "Page down", show=False),
        Binding("enter", "screen.turn('unfold')", "Thinking and calls", show=False),
        Binding("c", "screen.turn('copy')", "Copy"),
        Binding("y", "screen.turn('copy_code')", "Copy code"),
        Binding("e", "screen.turn('edit')", "Edit"),
        Binding("r", "screen.turn('regenerate')", "Retry"),
        Binding("m", "screen.turn('regenerate_with')", "Retry with another model", show=False),
        Binding("s", "screen.turn('compare')", "Compare"),
        Binding("g", "screen.turn('continue')", "Continue"),
        Binding("q", "screen.turn('quote')", "Quote"),
        Binding("p", "screen.turn('passages')", "Passages"),
        Binding("b", "screen.turn('bring_back')", "Bring back"),
        Binding("left", "screen.turn('other(-1)')", "Previous reply", show=False),
        Binding("right", "screen.turn('other(1)')", "Next reply", show=False),
        Binding("f", "screen.find", "Find", show=False),
        Binding("n", "match(1)", "Next match"),
        Binding("N", "match(-1)", "Previous match", show=False),
        Binding("escape", "screen.to_prompt", "Back"),
    ]

    @dataclass
    class Unread(Message):
        """The number of lines added since the end was last on screen."""

        lines: int

    class Replaced(Message):
        """A different list of pieces is being shown."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.pieces: list[Piece] = []
        self._first = self._last = 0
        self._heights: list[int] = []
        """Height of each piece in lines: measured near the screen at this width, estimated elsewhere."""
        self._tops: list[int] | None = None
        self._width = 80
        self._reading = (0, 0)
        """The piece at the top of the screen, and the line within it."""
        self._unread = UnreadLines()
        self._filler = Static(classes="filler")
        self._arranged_height = 0
        self._update_pending = False
        self._text_end = 0
        """Line where the text ended in the last layout."""
        self.current = ""
        """Id of the turn that keys act on, or '' while the prompt has the focus."""
        self._finder: Finder | None = None
        self._found: Piece | None = None
        """The piece with the current match."""

    def on_mount(self) -> None:
        self.mount(self._filler)
        self.anchor()

    def add(self, *pieces: Piece) -> None:
        self._remember_seen()
        self.pieces += pieces
        self._heights += [piece.estimate(self._width) for piece in pieces]
        self._tops = None
        self._update_mounted()
        self._lay_out_again()

    def append(self, piece: Piece, text: str) -> None:
        self._remember_seen()
        piece.append(text)
        if piece.sheet is None and piece in self.pieces:
            self._estimate_again(self.pieces.index(piece))
            self._lay_out_again()

    def show(self, pieces: list[Piece], *, turn: str = "") -> None:
        """Show another list of pieces, scrolled to the end or to `turn`. The list is updated in place."""
        self.forget_current()
        self._finder = self._found = None
        self._unmount(self.pieces)
        # The old list must be gone before the anchor scrolls.
        self.pieces, self._first, self._last, self._reading = pieces, 0, 0, (0, 0)
        self.rearrange(list(pieces))
        self.anchor()
        self.post_message(self.Replaced())
        if turn:
            self.point_at(turn)

    def rearrange(self, pieces: list[Piece]) -> None:
        """Replace the pieces in the list. The piece being read stays in place if it is among the new ones."""
        index, line = self._reading
        reading = self.pieces[index] if index < len(self.pieces) else None
        self._unmount(self.pieces)
        self.pieces[:] = pieces
        self._first = self._last = 0
        self._heights = [piece.estimate(self._width) for piece in pieces]
        self._tops = None
        self._unread.forget()
        if reading in pieces and not self.following:
            self._reading = (pieces.index(reading), line)
        self._update_mounted()
        self._lay_out_again()

    # The current turn.

    @property
    def turns(self) -> list[str]:
        """The turns' ids, from top to bottom."""
        return list(dict.fromkeys(piece.turn for piece in self.pieces if piece.turn))

    def point_at(self, turn: str) -> None:
        """Make a turn current, and scroll it into view."""
        indexes = [at for at, piece in enumerate(self.pieces) if piece.turn == turn]
        if not indexes:
            return
        self._make_current(turn)
        tops = self._positions()
        top, bottom = tops[indexes[0]], tops[indexes[-1] + 1]
        height = self.scrollable_content_region.height
        if not (self.scroll_y <= top and bottom <= self.scroll_y + height):
            self._scroll_to_piece(indexes[0])

    def _make_current(self, turn: str) -> None:
        self.forget_current()
        self.current = turn
        self.screen.refresh_bindings()
        for piece in self.pieces:
            if turn and piece.turn == turn:
                piece.mark(current=True)

    def forget_current(self) -> None:
        for piece in self.pieces:
            if piece.current:
                piece.mark(current=False)
        self.current = ""

    def action_step(self, by: int) -> None:
        turns = self.turns
        if turns:
            at = turns.index(self.current) if self.current in turns else len(turns) - (by > 0)
            self.point_at(turns[max(0, min(at + by, len(turns) - 1))])

    def action_last(self) -> None:
        """Make the last turn current, and scroll to its end."""
        self.action_step(len(self.turns))
        self.anchor()

    def _scroll_to_piece(self, index: int, line: int = 0) -> None:
        """Scroll a piece's line to the top of the screen; `line` may be negative."""
        self.release_anchor()
        self._text_end = _FAR  # otherwise the next layout would see the end on screen and stay there
        self._reading = (index, line)
        self._mount_near(max(0, self._positions()[index] + line))
        self._lay_out_again()

    # Finding text.

    @property
    def is_finding(self) -> bool:
        """Whether a search is active, with its matches marked."""
        return self._finder is not None

    def find(self, finder: Finder | None, *, turn: str = "") -> bool:
        """Highlight words and go to the first match, starting at `turn` or else at the top of the screen.

        Returns whether there are any matches. finder: None removes the highlighting.
        """
        self._finder, self._found = finder, None
        for piece in self.mounted_pieces:
            piece.find(self._finder)
        starts = (at for at, piece in enumerate(self.pieces) if turn and piece.turn == turn)
        found = self._go_to_match((next(starts, self._reading[0]), -1), 1)
        if not found and self._finder is not None:
            self._finder = None
            for piece in self.mounted_pieces:
                piece.find(None)
        self.screen.refresh_bindings()
        return found

    def action_match(self, by: int) -> None:
        """Go to the next (1) or previous (-1) line with a match."""
        at = self.pieces.index(self._found) if self._found in self.pieces else self._reading[0]
        line = self._found.here if self._found is not None else None
        self._go_to_match((at, -1 if line is None else line), by)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.is_finding if action == "match" else True

    def _go_to_match(self, place: Place, by: int) -> bool:
        if self._finder is None or not self.pieces:
            return False
        found = self._finder.step(self.pieces, place, by, self._width)
        if found is None:
            return False
        index, line = found
        if self._found is not None:
            self._found.find(self._finder)
        self._found = self.pieces[index]
        self._found.find(self._finder, line)
        self._make_current(self._found.turn)
        height = self.scrollable_content_region.height
        at = self._positions()[index] + line + 1  # below the blank line
        if not self.scroll_y <= at < self.scroll_y + height - 1:
            self._scroll_to_piece(index, line + 1 - height // 3)
        return True

    def on_focus(self) -> None:
        if not self.current and self.turns:
            self._make_current(self.turns[-1])

    def on_blur(self) -> None:
        """Clear the current turn, unless the terminal itself has lost the focus."""
        if self.app.app_focus:
            self.forget_current()

    def on_click(self, event: events.Click) -> None:
        """Make a turn current on a double click; a single click may be meant only to raise the window."""
        widget, _ = self.screen.get_widget_at(*event.screen_offset)
        piece = next((piece for piece in self.mounted_pieces if piece.sheet is widget), None)
        if piece is not None and piece.turn and event.chain == 2:
            self.focus(scroll_visible=False)
            self.point_at(piece.turn)

    def toggle_thoughts(self, turn: str = "") -> None:
        """Unfold everything in one turn, or the thinking in all turns.

        If the last of these is already unfolded, fold them all instead.
        """
        kind = FoldedPiece if turn else ThoughtPiece
        folded = [
            (index, piece)
            for index, piece in enumerate(self.pieces)
            if isinstance(piece, kind) and turn in ("", piece.turn)
        ]
        unfold = bool(folded) and not folded[-1][1].unfolded
        for index, piece in folded:
            if piece.unfolded != unfold:
                piece.toggle()
                self._estimate_again(index)
        self._lay_out_again()

    @property
    def mounted_pieces(self) -> list[Piece]:
        return self.pieces[self._first : self._last]

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        self._arranged_height = size.height  # `self.size` is still the old one
        return super().arrange(size, optimal)

    def process_layout(self, placements: list[WidgetPlacement]) -> list[WidgetPlacement]:
        """Move the mounted pieces to their positions among all pieces."""
        self._measure(placements)
        tops = self._positions()
        top, bottom = tops[self._first], tops[self._last]
        end = max(tops[-1] + 1, self._arranged_height)
        moved: list[WidgetPlacement] = []
        for placement in placements:
            x, _, width, _ = region = placement.region
            if placement.widget is self._filler:
                # Fills the space below; keeps short text at the top, and long text clear of the prompt.
                region = Region(x, bottom, width, end - bottom)
            else:
                region = region.translate((0, top))
            moved.append(placement._replace(region=region))
        self._keep_reading_position(tops, end)
        self._count_unread()
        if not self._update_pending:
            self._update_pending = True
            self.call_later(self._update_mounted)
        return moved

    def _lay_out_again(self) -> None:
        # Done through a child: a widget's own refresh would use the cached arrangement of its children.
        self._filler.refresh(layout=True)

    def _measure(self, placements: list[WidgetPlacement]) -> None:
        width = min(_WIDEST, self.scrollable_content_region.width - 2 * _MARGIN)
        if width != self._width:
            self._width, self._tops = width, None
            self._heights = [piece.estimate(width) for piece in self.pieces]
        by_widget = {placement.widget: placement.region.height for placement in placements}
        for index in range(self._first, self._last):
            sheet = self.pieces[index].sheet
            height = by_widget.get(sheet) if sheet is None or sheet.display else 0  # type: ignore[arg-type]
            if height is not None and height != self._heights[index]:
                self._heights[index], self._tops = height, None

    def _positions(self) -> list[int]:
        """Return the top line of each piece, then the end of the last one."""
        if self._tops is None:
            self._tops = list(accumulate(self._heights, initial=0))
        return self._tops

    def _estimate_again(self, index: int) -> None:
        self._heights[index], self._tops = self.pieces[index].estimate(self._width), None

    def _keep_reading_position(self, tops: list[int], end: int) -> None:
        if self.scroll_y >= self._text_end - self.scrollable_content_region.height:
            self._anchor_released = False
        self._text_end = end
        if self.following:
            return
        index, line = self._reading
        wanted = float(max(0, tops[min(index, len(self.pieces))] + line))
        if wanted != self.scroll_y:
            # Bypass the watchers, as Textual's anchor does: they would trigger this same layout again.
            self.set_reactive(Widget.scroll_y, wanted)
            self.set_reactive(Widget.scroll_target_y, wanted)
            self.vertical_scrollbar.set_reactive(ScrollBar.position, wanted)

    def _remember_seen(self) -> None:
        if not self.following:
            self._unread.before_adding(self._heights)

    def _count_unread(self) -> None:
        if self.following:
            self._unread.forget()
        bottom = round(self.scroll_y) + self.scrollable_content_region.height
        if self._unread.update(self._positions(), bottom):
            self.post_message(self.Unread(self._unread.count))

    @property
    def following(self) -> bool:
        """Whether the view stays at the end when text is added."""
        return self.is_anchored and not self._anchor_released

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Remember the reading position, and mount the pieces near it."""
        super().watch_scroll_y(old_value, new_value)
        tops = self._positions()
        index = max(0, min(bisect_right(tops, round(new_value)) - 1, len(self.pieces) - 1))
        self._reading = (index, round(new_value) - tops[index])
        self._count_unread()
        self._update_mounted()

    def _update_mounted(self) -> None:
        self._update_pending = False
        end = self._positions()[-1] - max(self.size.height, 20)
        self._mount_near(max(0, end) if self.following else round(self.scroll_y))

    def _mount_near(self, top: int) -> None:
        """Mount the pieces near a screen whose top is line `top`, and unmount pieces far away."""
        if not self.is_mounted or not self._filler.is_mounted:
            return
        screen = max(self.size.height, 20)
        tops = self._positions()
        near = self._range_between(tops, top - screen, top + 2 * screen)
        far = self._range_between(tops, top - 2 * screen, top + 3 * screen)
        if self._last <= near[0] or self._first >= near[1] or self._first == self._last:
            wanted = near
        else:
            wanted = (min(max(self._first, far[0]), near[0]), max(min(self._last, far[1]), near[1]))
        if wanted != (self._first, self._last):
            self._mount_range(*wanted)

    def _range_between(self, tops: list[int], top: int, bottom: int) -> tuple[int, int]:
        first = max(0, bisect_right(tops, top) - 1)
        last = min(len(self.pieces), bisect_right(tops, bottom))
        return first, max(first, last)

    def _mount_range(self, first: int, last: int) -> None:
        old, new = range(self._first, self._last), range(first, last)
        self._unmount(self.pieces[index] for index in old if index not in new)
        above = [index for index in new if not old or index < old.start]
        below = [index for index in new if old and index >= old.stop]
        self._first, self._last = first, last
        for piece in self.mounted_pieces:
            if piece is not self._found:
                piece.find(self._finder)
        if above:
            self.mount(*(self.pieces[index].mount() for index in above), before=0)
        if below:
            self.mount(*(self.pieces[index].mount() for index in below), before=self._filler)

    def _unmount(self, pieces: Iterable[Piece]) -> None:
        sheets = [sheet for piece in pieces if (sheet := piece.unmount()) is not None]
        for sheet in sheets:
            sheet.display = False  # it is removed later but should take no space now
        if sheets:
            self.remove_children(sheets)


class UnreadLines:
    """Remembers where the text seen so far ends, as a line within a piece, because pieces may move."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: tuple[int, int] | None = None
        """A piece and a line in it, or None while the end of the text is on screen."""

    def before_adding(self, heights: Sequence[int]) -> None:
        """Remember where the text ends, before something is added out of view.

        heights: the height of each piece.
        """
        if self._seen is None and heights:
            self._seen = (len(heights) - 1, heights[-1])

    def forget(self) -> None:
        """Start counting from the end of the text again."""
        self._seen = None

    def update(self, tops: Sequence[int], bottom: int) -> bool:
        """Update the count, and return whether it has changed.

        tops: the top of each piece, then the end of the text. bottom: the last line on screen.
        """
        before, self.count = self.count, 0
        if self._seen is not None:
            index, line = self._seen
            if bottom > tops[index] + line:
                index = max(0, min(bisect_right(tops, bottom), len(tops) - 1) - 1)
                line = bottom - tops[index]
                self._seen = (index, line)
            self.count = max(0, tops[-1] - tops[index] - line)
            if not self.count:
                self._seen = None
        return self.count != before
