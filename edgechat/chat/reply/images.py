"""The images of a conversation for the model, and those of results for the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgechat.base.errors import ImageError
from edgechat.chat.attachments.images import keep_image
from edgechat.chat.records import AttachedImage, Turn
from edgechat.engine.types import ModelInfo

if TYPE_CHECKING:
    from edgechat.base.images.image import Image, ImageLibrary

FindImage = Callable[[str], "Image | None"]
"""Returns the image of a digest; None for one that is missing, or that the model cannot see."""


class ChatImages:
    """Finds and keeps images in a library, which is opened at first use."""

    def __init__(self, library: Callable[[], ImageLibrary]) -> None:
        self._library = library

    async def find(self, turns: Sequence[Turn], model: ModelInfo | None) -> FindImage:
        """Return what finds the images of turns; nothing for a model that does not see."""
        digests = {image.digest for turn in turns for image in turn.all_images}
        if not digests or model is None or not model.sees:
            return lambda _digest: None
        library = self._library()
        found = await asyncio.to_thread(lambda: {digest: library.get(digest) for digest in digests})
        return found.get

    async def keep(self, files: Sequence[bytes]) -> tuple[AttachedImage, ...]:
        """Store the images of a result; those that cannot be decoded are left out."""
        return await asyncio.to_thread(self._keep, files)

    def _keep(self, files: Sequence[bytes]) -> tuple[AttachedImage, ...]:
        kept: list[AttachedImage] = []
        for number, data in enumerate(files, 1):
            try:
                kept.append(keep_image(self._library(), data, f"image {number}"))
            except ImageError:
                continue
        return tuple(kept)
