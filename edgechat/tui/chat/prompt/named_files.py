"""The images and folders that a question names after an @, while it is typed, or why they cannot be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import DocumentError, ImageError
from edgechat.base.text import one_line
from edgechat.chat.attachments import folders_named_in, images_named_in, read_image
from edgechat.tui.chat.prompt.chips import Chip, chip_of

if TYPE_CHECKING:
    from edgechat.base.images.image import ImageLibrary
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


@dataclass(frozen=True, slots=True)
class NamedFolder:
    """A folder that a text names."""

    path: str
    chip: Chip | None = None
    """None if there are no documents in it."""


class NamedFiles:
    """What the text in the prompt names. Each file is read once, unless it changes; each folder once."""

    def __init__(self) -> None:
        self.found: list[NamedImage] = []
        self.folders: list[NamedFolder] = []

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
        folders = {folder.path: folder for folder in self.folders}
        for path in (paths := await asyncio.to_thread(folders_named_in, text)):
            if path not in folders:
                folders[path] = await asyncio.to_thread(_surveyed, path)
        self.folders = [folders[path] for path in paths]

    def clear(self) -> None:
        """Forget them: the text was sent."""
        self.found, self.folders = [], []

    def shown(self, attached: Collection[AttachedImage]) -> list[NamedImage | NamedFolder]:
        """Return those that are not attached anyway."""
        digests = {image.digest for image in attached}
        images = [named for named in self.found if named.image is None or named.image.digest not in digests]
        return [*images, *(folder for folder in self.folders if folder.chip is not None)]

    def chips(self, attached: Collection[AttachedImage]) -> list[Chip]:
        """Return the chips of `shown`."""
        return [named.chip for named in self.shown(attached) if named.chip is not None]


def _surveyed(path: str) -> NamedFolder:
    from edgechat.documents.registry import collection_at, root_of, survey  # not needed for the first frame

    try:
        root = root_of(path)
    except DocumentError:  # gone in between
        return NamedFolder(path)
    name = f"{one_line(root.name, 30)}/"
    known = collection_at(root)
    if known is not None and known.counts is not None and known.counts.files:
        return NamedFolder(path, Chip(f"▤ {name} · {known.about}"))
    found = survey(root)
    if found.is_large:
        return NamedFolder(path, Chip(f"▤ {name} is large: /docs {one_line(path, 30)}", is_problem=True))
    if not found.files:
        return NamedFolder(path)
    return NamedFolder(path, Chip(f"▤ {name} · {found.files:,} file{'s' * (found.files != 1)}"))


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
