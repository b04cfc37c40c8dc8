"""Images in sheets: thumbnails, or real pictures if the terminal can show them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from textual.app import App

from edgechat.tui.terminal.pictures import PictureKey, PictureOutput, TerminalPictures
from edgechat.tui.transcript.pieces import ThumbnailKey, UserSheet
from edgechat.tui.transcript.thumbnails import Thumbnails

if TYPE_CHECKING:
    from edgechat.base.images.image import ImageLibrary

_SETTLING_SECONDS = 0.1
"""Seconds that a picture must stay visible before it is sent, so that scrolling past sends none."""
_SPARE_PICTURES = 16
"""Number of pictures far from the screen that the terminal may keep, each taking up to 3 MB."""
_COLOURS = {"256": 256, "truecolor": 1 << 24}
"""Number of colours in each colour system, keyed by Rich's name for the system."""


class _NoPictures:
    """Output for drivers that cannot send pictures."""

    cell_size = None

    def write(self, data: str) -> None:
        pass

    async def drained(self) -> bool:
        return False


class TranscriptImages:
    """Creates the images that sheets request. Runs in the app's event loop."""

    def __init__(
        self, app: App[None], output: object, library: Callable[[], Awaitable[ImageLibrary]]
    ) -> None:
        """output: the driver, which may be unable to send pictures.

        library: a function that opens the image library; may raise EdgechatError.
        """
        self._app = app
        self._thumbnails = Thumbnails(library)
        colours = _COLOURS.get(app.console.color_system or "", 0)
        if app.no_color or not isinstance(output, PictureOutput):
            output, colours = _NoPictures(), 0
        self.pictures = TerminalPictures(output, colours, self._begin_anew)

    async def show_thumbnails(self, sheet: UserSheet, wanted: Sequence[ThumbnailKey]) -> None:
        for key in wanted:
            if sheet.is_attached:  # it may have been scrolled away
                sheet.show_thumbnails({key: await self._thumbnails.make(*key)})

    async def show_picture(self, sheet: UserSheet, wanted: ThumbnailKey) -> None:
        """Show a sheet's image as a picture if the terminal can show one and the image stays visible."""
        pictures = self.pictures
        if not pictures.is_ready:
            return
        await asyncio.sleep(_SETTLING_SECONDS)
        if not sheet.is_seen(wanted):
            sheet.forget_picture(wanted)
            return
        key = PictureKey(wanted[0], *wanted[1])
        lines = pictures.lines_of(key)
        if not lines:
            pixels = await self._thumbnails.pixels(key.digest, pictures.pixels_of(key))
            lines = await pictures.send(key, pixels) if pixels is not None else ()
        if lines:
            sheet.show_picture(wanted, lines)
            self.tidy(spare=_SPARE_PICTURES)

    def tidy(self, *, spare: int = 0) -> None:
        """Free the pictures that are far from the screen, except the last `spare` sent."""
        wanted = (key for sheet in self._sheets() for key in sheet.pictures)
        self.pictures.keep({PictureKey(digest, *size) for digest, size in wanted}, spare=spare)

    async def close(self) -> None:
        """Free all pictures, and stop the decoding process."""
        self.pictures.close()
        await self._thumbnails.close()

    def _begin_anew(self) -> None:
        for sheet in self._sheets():
            for key in sheet.pictures:
                sheet.forget_picture(key)

    def _sheets(self) -> Iterator[UserSheet]:
        for screen in self._app.screen_stack:
            yield from screen.query(UserSheet)
