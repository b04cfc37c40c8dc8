"""The images that a question names after an @, while it is typed, or why they cannot be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import ImageError
from edgechat.base.text import one_line
from edgechat.chat.attachments.images import read_image
from edgechat.chat.attachments.mentions import images_named_in
from edgechat.tui.chat.prompt.chips import Chip, chip_of

if TYPE_CHECKING:
    from edgechat.base.images.library import ImageLibrary
    from edgechat.chat.records import AttachedImage

_LONGEST = 70
"""Characters of a problem."""


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image that a text names."""

    path: str
    version: tuple[int, int]
    """When the file was changed, and its size: it is read again if they are others."""
    image: AttachedImage | None
    problem: str = ""
    """Why there is none."""

    @property
    def chip(self) -> Chip:
        return Chip(f"▣ {self.problem}", is_problem=True) if self.image is None else chip_of(self.image)


class NamedImages:
    """The images that the text in the prompt names. Each file is read once, unless it changes."""

    def __init__(self) -> None:
        self.found: list[NamedImage] = []

    async def update(self, text: str, library: Callable[[], Awaitable[ImageLibrary]]) -> None:
        """Look for what a text names."""
        known = {named.path: named for named in self.found}
        found = []
        for path in await asyncio.to_thread(images_named_in, text):
            version = await asyncio.to_thread(_version, path)
            named = known.get(path)
            if named is None or named.version != version:
                named = await asyncio.to_thread(_read, await library(), path, version)
            found.append(named)
        self.found = found

    def clear(self) -> None:
        """Forget them: the text was sent."""
        self.found = []

    def shown(self, attached: Collection[AttachedImage]) -> list[NamedImage]:
        """Return those that are not attached anyway."""
        digests = {image.digest for image in attached}
        return [named for named in self.found if named.image is None or named.image.digest not in digests]

    def chips(self, attached: Collection[AttachedImage]) -> list[Chip]:
        """Return the chips of `shown`."""
        return [named.chip for named in self.shown(attached)]


def _version(path: str) -> tuple[int, int]:
    try:
        about = Path(path).expanduser().stat()
    except OSError:  # gone in between
        return 0, 0
    return about.st_mtime_ns, about.st_size


def _read(library: ImageLibrary, path: str, version: tuple[int, int]) -> NamedImage:
    try:
        return NamedImage(path, version, read_image(library, path))
    except ImageError as error:
        return NamedImage(path, version, None, one_line(error.message, _LONGEST).rstrip("."))
