"""Pieces of a transcript: plain data that outlives its widgets.

Untrusted text, such as a reply, a paste or a file name, is made safe for the terminal here: only
pieces reach the transcript.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from rich.style import Style as RichStyle
from textual import events
from textual.content import Content
from textual.errors import NoWidget
from textual.geometry import Size
from textual.message import Message
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from edgechat.base.text import one_line, printable
from edgechat.tui.markdown.blocks import RenderedLine
from edgechat.tui.transcript.sheet import Sheet
from edgechat.tui.transcript.thumbnails import Thumbnail, ThumbnailSize, size_of

if TYPE_CHECKING:
    from edgechat.chat.records import AttachedImage

Link = tuple[str, str]
"""A label to click, and the action it runs on its turn; see `commands.act`."""
ThumbnailKey = tuple[str, ThumbnailSize]
"""An image's digest and the size at which it is shown."""

Place = tuple[int, int]
"""A piece's index, and a line in the piece."""


class Piece:
    """An element of the transcript. `sheet` is its widget while it is near the screen."""

    is_searched: ClassVar[bool] = False
    """Whether searching the transcript covers its text."""

    def __init__(self, text: str = "") -> None:
        self.text = printable(text)
        self.sheet: Sheet | None = None
        self.turn = ""
        """The id of its turn, or '' if it belongs to none."""
        self.current = False
        """Whether its turn is the current one, which key presses act on."""
        self.left_out = False
        """Whether its turn is no longer sent to the model."""
        self.finder: Finder | None = None
        """The current search, whose matches are marked."""
        self.here: int | None = None
        """The line of the current match, if it is in this piece."""

    def lay_out(self, width: int) -> list[RenderedLine]:
        """Return the piece's lines at a width."""
        raise NotImplementedError

    def lines(self, width: int) -> list[RenderedLine]:
        """Return the piece's lines at a width, even if it is far from the screen."""
        return self.lay_out(width)

    def find(self, finder: Finder | None, here: int | None = None) -> None:
        """Mark the words searched for. here: the line of the current match."""
        if (self.finder, self.here) != (finder, here):
            self.finder, self.here = finder, here
            self._changed()

    def mount(self) -> Sheet:
        self.sheet = self._new_sheet()
        self.mark()
        return self.sheet

    def unmount(self) -> Sheet | None:
        """Detach the widget and return it."""
        sheet, self.sheet = self.sheet, None
        return sheet

    def _new_sheet(self) -> Sheet:
        return PieceSheet(self)

    def mark(self, *, current: bool | None = None, left_out: bool | None = None) -> None:
        """Set and show whether its turn is current and whether it is left out."""
        self.current = self.current if current is None else current
        self.left_out = self.left_out if left_out is None else left_out
        if self.sheet is not None:
            self.sheet.set_class(self.current, "-current")
            self.sheet.set_class(self.left_out, "-left-out")

    def append(self, text: str) -> None:
        self.text += printable(text)
        self._changed()

    def _changed(self) -> None:
        if self.sheet is not None:
            self.sheet.changed()

    def estimate(self, width: int) -> int:
        """Estimate the height in lines, including the blank line above."""
        return 2 + self.text.count("\n") + len(self.text) // max(1, width)


class UserPiece(Piece):
    """A question as typed, below its images and the names of its attachments."""

    is_searched = True

    def __init__(
        self, text: str, attachments: tuple[str, ...] = (), images: tuple[AttachedImage, ...] = ()
    ) -> None:
        super().__init__(text)
        self._attachments = tuple(one_line(name, 60) for name in attachments)
        self.images = images
        self.most_rows = 8
        """Maximum height of a picture in lines: a third of the screen, once that is known."""
        self.thumbnails: dict[ThumbnailKey, Thumbnail] = {}
        """Thumbnails created while the piece is near the screen."""
        self.pictures: dict[ThumbnailKey, tuple[Strip, ...]] = {}
        """Requested pictures, with their cells once the terminal has them."""
        self.rows: dict[int, tuple[ThumbnailKey, int]] = {}
        """Picture rows, keyed by the line that shows them, as of the last layout."""

    @property
    def wanted(self) -> list[ThumbnailKey]:
        """Thumbnails that have not been created yet."""
        keys = dict.fromkeys(key for key, _ in self.rows.values())
        return [key for key in keys if key not in self.thumbnails]

    def _new_sheet(self) -> Sheet:
        return UserSheet(self)

    def unmount(self) -> Sheet | None:
        self.thumbnails, self.pictures = {}, {}
        return super().unmount()

    def estimate(self, width: int) -> int:
        boxes = (size_of(image, width - 4, self.most_rows) for image in self.images)
        return super().estimate(width) + sum(1 + size.rows for size in boxes) + bool(self._attachments)

    def mark(self, *, current: bool | None = None, left_out: bool | None = None) -> None:
        super().mark(current=current, left_out=left_out)
        self._changed()  # the current turn has a different bar

    def lay_out(self, width: int) -> list[RenderedLine]:
        bar, style = ("█ ", ".current") if self.current else ("▌ ", ".marker")
        lines: list[RenderedLine] = []
        self.rows = {}
        for image in self.images:
            key = image.digest, size_of(image, width - 4, self.most_rows)
            thumbnail = self.thumbnails.get(key)
            problem = thumbnail.problem if thumbnail is not None else ""
            name = f"▣ {one_line(image.name, 60)} {image.size} {problem}".rstrip()
            lines += behind_bar(
                Content(name).stylize(".warning" if problem else ".code"), width - 2, style, bar
            )
            for y in range(0 if problem else key[1].rows):
                self.rows[len(lines)] = (key, y)
                lines.append(RenderedLine.decoration(Content.styled(bar, style)))
        if self._attachments:
            names = Content("  ".join(f"▤ {name}" for name in self._attachments)).stylize(".code")
            lines += behind_bar(names, width - 2, style, bar)
        if self.text or not lines:
            lines += behind_bar(Content(self.text).stylize(".strong"), width - 2, style, bar)
        return lines


class FoldedPiece(Piece):
    """A heading, with more lines below it when unfolded."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.unfolded = False

    def _new_sheet(self) -> Sheet:
        return FoldedSheet(self)

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        self._changed()

    def estimate(self, width: int) -> int:
        return super().estimate(width) + 1 if self.unfolded else 2

    def heading(self, width: int) -> Content:
        """Return the line that is always visible."""
        raise NotImplementedError

    def body(self, width: int) -> list[RenderedLine]:
        """Return the lines below the heading."""
        raise NotImplementedError

    def lay_out(self, width: int) -> list[RenderedLine]:
        body = self.body(width) if self.unfolded else []
        return [RenderedLine(self.heading(width)), *body]


class ThoughtPiece(FoldedPiece):
    """The thinking that precedes an answer."""

    def __init__(self, text: str = "", *, tokens: int = 0, seconds: float | None = None) -> None:
        super().__init__(text)
        self.tokens = tokens
        self.seconds = seconds
        """Duration of the thinking in seconds, or None while it is in progress."""

    def resume(self) -> None:
        self.seconds = None
        self._changed()

    def finish(self, tokens: int, seconds: float) -> None:
        self.tokens, self.seconds = tokens, seconds
        self._changed()

    def heading(self, width: int) -> Content:
        parts = ["Thinking" if self.seconds is None else f"Thought for {duration(self.seconds)}"]
        if self.tokens:
            parts.append("1 token" if self.tokens == 1 else f"{self.tokens:,} tokens")
        return Content(f"{'▾' if self.unfolded else '▸'} {' · '.join(parts)}").stylize(".faint")

    def body(self, width: int) -> list[RenderedLine]:
        return behind_bar(Content(self.text.strip()).stylize(".faint"), width, ".faint", bar="│ ")


class CutPiece(Piece):
    """The line below the turns that are no longer sent to the model."""

    def lay_out(self, width: int) -> list[RenderedLine]:
        return [RenderedLine(Content("╌" * width).stylize(".warning")), *wrap(self.text, width, ".faint")]


class NotePiece(Piece):
    """A note from edgechat, such as how a reply ended, with optional links."""

    def __init__(
        self, text: str, tone: Literal["faint", "warning", "error"] = "faint", links: Sequence[Link] = ()
    ) -> None:
        super().__init__(text)
        self._tone = tone
        self._links = links

    def lay_out(self, width: int) -> list[RenderedLine]:
        line = Content(self.text).stylize(f".{self._tone}")
        for label, action in self._links:
            line = Content.assemble(line, "  ", _link(label, self.turn, action))
        return [RenderedLine(line) for line in line.wrap(width)]


class FooterPiece(Piece):
    """The line below a turn: its version, with arrows to the others, and a reply's statistics."""

    def __init__(self, figures: Sequence[str], branch: tuple[int, int] = (0, 1)) -> None:
        """figures: the statistics, most important first. Those that do not fit are left out."""
        super().__init__(" · ".join(figures))
        self._figures = figures
        self._branch = branch

    def _new_sheet(self) -> Sheet:
        return FooterSheet(self)

    def estimate(self, width: int) -> int:
        return 1

    def lay_out(self, width: int) -> list[RenderedLine]:
        number, count = self._branch
        parts: list[Content] = []
        if count > 1:
            back = _link("‹", self.turn, "other(-1)") if number else Content("‹").stylize(".faint")
            on = _link("›", self.turn, "other(1)") if number + 1 < count else Content("›").stylize(".faint")
            parts = [back, Content(f" {number + 1} of {count} ").stylize(".faint"), on, Content("  ")]
        arrows = Content.assemble(*parts)
        room = width - arrows.cell_length
        figures = [Content(" · ".join(self._figures[:n])) for n in range(len(self._figures), 0, -1)]
        fitting = next((text for text in figures if text.cell_length <= room), Content(""))
        return [RenderedLine(Content.assemble(arrows, fitting.stylize(".faint")))]


class ProblemPiece(Piece):
    """An error: what happened, and what to do about it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self._hint = printable(hint or "")

    def lay_out(self, width: int) -> list[RenderedLine]:
        lines = behind_bar(Content(self.text).stylize(".error"), width, ".error")
        if self._hint:
            lines += behind_bar(Content(self._hint), width, ".error")
        return lines


P = TypeVar("P", bound=Piece)


class PieceSheet(Sheet, Generic[P]):
    """A piece's widget."""

    def __init__(self, piece: P) -> None:
        super().__init__()
        self._piece = piece

    def lay_out(self, width: int) -> list[RenderedLine]:
        lines, finder = self._piece.lay_out(width), self._piece.finder
        return lines if finder is None else finder.mark(lines, self._piece.here)


class FooterSheet(PieceSheet[FooterPiece]):
    """A footer, with no blank line above it."""

    DEFAULT_CSS = """
    FooterSheet { padding: 0; }
    """


class UserSheet(PieceSheet[UserPiece]):
    """A question on a tinted background as wide as the prompt; images appear once they are ready."""

    GROUND = "tinted"

    @dataclass
    class ThumbnailsWanted(Message):
        """A request for thumbnails, to be delivered to `show_thumbnails`."""

        sheet: UserSheet
        wanted: Sequence[ThumbnailKey]

    @dataclass
    class PictureWanted(Message):
        """A request for a full picture of an image on screen, to be delivered to `show_picture`."""

        sheet: UserSheet
        wanted: ThumbnailKey

    def show_thumbnails(self, made: Mapping[ThumbnailKey, Thumbnail]) -> None:
        """Show these thumbnails. Those with a problem take up no space."""
        self._piece.thumbnails |= made
        self.changed()
        self.redraw()

    @property
    def pictures(self) -> list[ThumbnailKey]:
        """Images whose pictures have been requested, or [] once the piece is far from the screen."""
        return list(self._piece.pictures) if self._piece.sheet is self else []

    def show_picture(self, key: ThumbnailKey, lines: tuple[Strip, ...]) -> None:
        """Show these cells in place of the thumbnail."""
        if key in self.pictures:
            self._piece.pictures[key] = lines
            self.redraw()

    def forget_picture(self, key: ThumbnailKey) -> None:
        """Show the thumbnail again. The picture is requested again when the thumbnail is next drawn."""
        if key in self.pictures:
            del self._piece.pictures[key]
            self.redraw()

    def is_seen(self, key: ThumbnailKey) -> bool:
        """Return whether any row of an image is on screen."""
        if key not in self.pictures or not self.is_attached:
            return False
        try:
            geometry = self.screen.find_widget(self)
        except NoWidget:
            return False
        top = geometry.region.y + self.gutter.top
        rows = [top + y for y, (shown, _) in self._piece.rows.items() if shown == key]
        return any(y in geometry.visible_region.line_range for y in rows)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        most_rows = max(1, viewport.height // 3)
        if self._piece.images and most_rows != self._piece.most_rows:
            self._piece.most_rows = most_rows
            self.lay_out_again()
        return super().get_content_height(container, viewport, width)

    def lay_out(self, width: int) -> list[RenderedLine]:
        lines = super().lay_out(width)
        if self._piece.wanted:
            self.call_later(self._want_thumbnails)  # messages sent during the layout are lost
        return lines

    def _want_thumbnails(self) -> None:
        if self._piece.wanted:
            self.post_message(self.ThumbnailsWanted(self, self._piece.wanted))

    def _draw(self, line: RenderedLine, y: int, style: Style, selected: Selection | None) -> Strip:
        strip = super()._draw(line, y, style, selected)
        if y in self._piece.rows:
            key, row = self._piece.rows[y]
            lines = self._cells(key)
            if lines:
                ground = RichStyle(bgcolor=style.rich_style.bgcolor)
                return Strip.join([strip, lines[row].apply_style(ground)])
        return strip

    def _cells(self, key: ThumbnailKey) -> tuple[Strip, ...]:
        """Return the cells that show an image, requesting its picture if needed."""
        thumbnail = self._piece.thumbnails.get(key)
        if thumbnail is None or not thumbnail.lines:
            return ()
        if key not in self._piece.pictures:
            self._piece.pictures[key] = ()
            self.call_later(self._want_picture, key)
        return self._piece.pictures[key] or thumbnail.lines

    def _want_picture(self, key: ThumbnailKey) -> None:
        self.post_message(self.PictureWanted(self, key))


class FoldedSheet(PieceSheet[FoldedPiece]):
    """Thinking, a tool call or passages. A click folds or unfolds them."""

    DEFAULT_CSS = """
    FoldedSheet:hover { text-style: underline; }
    """

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if "@click" not in event.style.meta:
            self._piece.toggle()


def _link(label: str, turn: str, action: str) -> Content:
    """Return a label that runs an action on a turn when clicked."""
    click = Style.from_meta({"@click": f"screen.turn({action!r}, {turn!r})"})
    return Content(label).stylize(".action").stylize(click)


def duration(seconds: float) -> str:
    """Format a duration."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def behind_bar(content: Content, width: int, style: str, bar: str = "▌ ") -> list[RenderedLine]:
    """Return wrapped text with a bar in front of each line."""
    wrapped = content.wrap(max(1, width - len(bar)))
    return [RenderedLine(Content.assemble((bar, style), line), len(bar)) for line in wrapped]


def wrap(text: str, width: int, style: str) -> list[RenderedLine]:
    """Return text wrapped to a width, in a single style."""
    return [RenderedLine(line) for line in Content(text).stylize(style).wrap(width)]


class Finder:
    """Finds the words of a query, using the same rules as the search across all conversations."""

    def __init__(self, query: str) -> None:
        from edgechat.chat.storage.search import marks, parse_query

        self._spans = partial(marks, words=parse_query(query))

    def step(self, pieces: Sequence[Piece], place: Place, by: int, width: int) -> Place | None:
        """Return the next place with a match (by=1) or the previous one (by=-1), or None if there is none.

        The search wraps around. place: where to start; its line may lie outside the piece.
        """
        first, line = place
        for distance in range(len(pieces) + 1):
            index = (first + by * distance) % len(pieces)
            lines = self._lines(pieces[index], width)
            if not distance:
                lines = [number for number in lines if (number > line if by > 0 else number < line)]
            if lines:
                return index, lines[0 if by > 0 else -1]
        return None

    def _lines(self, piece: Piece, width: int) -> list[int]:
        if not piece.is_searched or not self._spans(piece.text):
            return []
        lines = piece.lines(width)
        return [number for number, line in enumerate(lines) if self._spans(line.content.plain)]

    def mark(self, lines: Sequence[RenderedLine], here: int | None) -> list[RenderedLine]:
        """Return a piece's lines with the words marked. here: the line of the current match."""
        marked: list[RenderedLine] = []
        for number, line in enumerate(lines):
            content = line.content
            for start, end in self._spans(content.plain):
                content = content.stylize(".here" if number == here else ".match", start, end)
            marked.append(line._replace(content=content))
        return marked
