"""Thumbnails: each cell shows two pixels, one above the other, as a ▀ in two colours.

Where the terminal supports it, `terminal.pictures` shows images in more detail. textual-image is not
used for that: it queries the terminal on import and reads the answer itself, decodes files in the
app's own process, and bypasses the driver when writing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from edgechat.base.errors import EdgechatError, ImageError

if TYPE_CHECKING:
    from edgechat.base.images.image import Decoder, ImageLibrary, Pixels
    from edgechat.chat.records import AttachedImage

_WIDEST = 60
"""Maximum width of a thumbnail, in cells."""
_MOST_PIXELS = 1 << 16
"""Maximum number of decoded pixels from which a thumbnail is created."""
_KEPT = 40
"""Maximum number of cached thumbnails, each taking up to half a megabyte."""
_IDLE_SECONDS = 5.0
"""Seconds after which an idle decoding process is stopped."""


class ThumbnailSize(NamedTuple):
    """Size of a thumbnail, in cells."""

    columns: int
    rows: int


def size_of(image: AttachedImage, width: int, most_rows: int) -> ThumbnailSize:
    """Return an image's thumbnail size: at most one cell per pixel horizontally, half a cell vertically."""
    if not (image.width and image.height):
        return ThumbnailSize(0, 0)
    scale = min(1.0, min(width, _WIDEST) / image.width, 2 * most_rows / image.height)
    return ThumbnailSize(max(1, round(scale * image.width)), max(1, round(scale * image.height / 2)))


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """An image as lines of cells, or the reason there are none."""

    lines: tuple[Strip, ...] = ()
    problem: str = ""


class Thumbnails:
    """Creates thumbnails of a library's images, one at a time in a thread, and caches the latest."""

    def __init__(self, library: Callable[[], Awaitable[ImageLibrary]]) -> None:
        """library: a function that opens the image library; may raise EdgechatError."""
        self._library = library
        self._kept: OrderedDict[tuple[str, ThumbnailSize], Thumbnail] = OrderedDict()
        self._working = asyncio.Lock()
        self._decoder: Decoder | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def make(self, digest: str, size: ThumbnailSize) -> Thumbnail:
        """Return a thumbnail, creating it first if it is not cached."""
        async with self._working:
            thumbnail = self._kept.get((digest, size)) or await self._made(digest, size)
            if thumbnail.lines:
                self._kept[digest, size] = thumbnail
                self._kept.move_to_end((digest, size))
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            self._close_when_idle()
        return thumbnail

    async def pixels(self, digest: str, box: tuple[int, int]) -> Pixels | None:
        """Return an image scaled down to fit a box given in pixels, or None on failure."""
        async with self._working:
            try:
                library = await self._library()
                return await asyncio.to_thread(self._decode, library, digest, 4 * box[0] * box[1], box)
            except EdgechatError:  # the thumbnail reports it
                return None
            finally:
                self._close_when_idle()

    async def _made(self, digest: str, size: ThumbnailSize) -> Thumbnail:
        try:
            library = await self._library()
        except EdgechatError:  # a problem with the store, reported elsewhere
            return Thumbnail(problem="cannot be read")
        try:
            pixels = await asyncio.to_thread(self._decode, library, digest, _MOST_PIXELS)
        except ImageError:
            return Thumbnail(problem="cannot be decoded")
        if pixels is None:
            return Thumbnail(problem="is no longer on this machine")
        return Thumbnail(await asyncio.to_thread(lines_of, pixels, size))

    async def close(self) -> None:
        """Stop the decoding process if it is running."""
        if self._idle is not None:
            self._idle.cancel()
        async with self._working:
            decoder, self._decoder = self._decoder, None
            if decoder is not None:
                await asyncio.to_thread(decoder.close)

    def _close_when_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(_IDLE_SECONDS, lambda: loop.create_task(self.close()))

    def _decode(
        self, library: ImageLibrary, digest: str, most_pixels: int, box: tuple[int, int] | None = None
    ) -> Pixels | None:
        from edgechat.base.images.image import Decoder

        image = library.get(digest)
        if image is None:
            return None
        self._decoder = self._decoder or Decoder()
        return self._decoder.pixels(Path(image.path), most_pixels=most_pixels, box=box)


def lines_of(pixels: Pixels, size: ThumbnailSize) -> tuple[Strip, ...]:
    """Return an image as lines of half blocks."""
    colours = [_row(pixels, size.columns, y, 2 * size.rows) for y in range(2 * size.rows)]
    return tuple(_line(colours[y], colours[y + 1]) for y in range(0, 2 * size.rows, 2))


def _row(pixels: Pixels, columns: int, y: int, height: int) -> list[Color]:
    """Return the mean colours in row `y` of an image divided into `columns` x `height` areas."""
    stride, rgb = 3 * pixels.width, pixels.rgb
    top = y * pixels.height // height
    bottom = max(top + 1, (y + 1) * pixels.height // height)
    row = []
    for x in range(columns):
        left = x * pixels.width // columns
        right = max(left + 1, (x + 1) * pixels.width // columns)
        areas = [rgb[line * stride + 3 * left : line * stride + 3 * right] for line in range(top, bottom)]
        n = (right - left) * (bottom - top)
        row.append(
            Color.from_rgb(*(sum(sum(area[channel::3]) for area in areas) / n for channel in range(3)))
        )
    return row


def _line(upper: list[Color], lower: list[Color]) -> Strip:
    segments = [
        Segment("▀", Style(color=above, bgcolor=below)) for above, below in zip(upper, lower, strict=True)
    ]
    return Strip(segments, len(segments))
