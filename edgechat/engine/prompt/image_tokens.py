"""The tokens of images in prompts: each is decoded and cut once, and remembered by its content.

In a rendered prompt an image is a mark: its digest between two characters that no text contains. So images
pass through templates as text does, and a text is cut at the marks where it is tokenized.
"""

from __future__ import annotations

import random
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from edgechat.base.errors import BadRequest
from edgechat.base.images.image import PLACE, Image, Pixels
from edgechat.engine.backends.base import Media, Vision
from edgechat.engine.backends.media import key_of
from edgechat.engine.types import Message

_RUNS = 8192
_REMEMBERED = 256
"""Images whose tokens are remembered ..."""
MOST_IMAGES = 128
"""Images of a request."""
_CUT = 16
"""... and those whose pixels are, scaled for the encoder: some 10 MB each."""


class ImageTokens:
    """The images of a model's prompts. Any thread."""

    def __init__(
        self,
        vision: Vision | None = None,
        decode: Callable[[str], Pixels] | None = None,
        *,
        why_blind: str = "",
    ) -> None:
        """vision: None: images are refused. decode: returns the pixels of a file."""
        self._why_blind = why_blind or "This model cannot see images."
        self._vision = vision
        self._decode = decode
        # Private-use characters beyond those of ControlTokens, random in each process.
        self._mark = chr(random.SystemRandom().randrange(0x100000, 0x10FFFE))
        self._marks = re.compile(f"{self._mark}([0-9a-f]{{32}}){self._mark}")
        self._tokens: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._images: OrderedDict[tuple[int, ...], Image] = OrderedDict()
        """The image of each run of media ids."""
        self._cut: OrderedDict[tuple[int, ...], Media] = OrderedDict()
        self._lock = threading.Lock()

    def marked(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return messages whose texts have marks for images, each of which has been cut.

        Raises BadRequest where the model cannot see, or cannot take an image; ImageError.
        """
        if sum(len(message.images) for message in messages) > MOST_IMAGES:
            raise BadRequest(f"A conversation can have up to {MOST_IMAGES} images.", hint="Send fewer.")
        return tuple(map(self._marked, messages))

    def _marked(self, message: Message) -> Message:
        text = message.content.replace(self._mark, "")
        if not message.images:
            return message if text is message.content else replace(message, content=text)
        for image in message.images:
            self._remember(image)
        marks = [f"{self._mark}{image.digest}{self._mark}" for image in message.images]
        parts = text.split(PLACE)
        n_unplaced = max(0, len(marks) - (len(parts) - 1))
        placed, rest = marks[n_unplaced:], parts[len(marks) - n_unplaced + 1 :]
        text = parts[0] + "".join(mark + part for mark, part in zip(placed, parts[1:], strict=False))
        return replace(message, content="".join(marks[:n_unplaced]) + text + "".join(rest), images=())

    def _remember(self, image: Image) -> None:
        with self._lock:
            if image.digest in self._tokens:
                self._tokens.move_to_end(image.digest)
                return
        self._cut_image(image)

    def _cut_image(self, image: Image) -> None:
        """Decode an image and cut it; remember what it consists of."""
        if self._vision is None or self._decode is None:
            raise BadRequest(
                self._why_blind,
                hint="Use a model that sees (`edgechat list` says which), or leave the image out.",
            )
        parts = self._vision.cut(self._decode(image.path), image.digest)
        tokens: list[int] = []
        with self._lock:
            for part in parts:
                if isinstance(part, Media):
                    tokens += part.ids
                    key = key_of(part.ids)
                    self._images[key] = image
                    self._images.move_to_end(key)
                    while len(self._images) > _RUNS:
                        self._images.popitem(last=False)
                    if key in self._cut:
                        self._vision.release(part)
                    else:
                        self._cut[key] = part
                else:
                    tokens += part
            self._tokens[image.digest] = tuple(tokens)
            while len(self._cut) > max(_CUT, len(parts)):
                self._vision.release(self._cut.popitem(last=False)[1])
            while len(self._tokens) > _REMEMBERED:
                self._tokens.popitem(last=False)

    def stretches(self, text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Cut a rendered text at its marks; yield (text, tokens of the image after it), () for the last."""
        at = 0
        for mark in self._marks.finditer(text):
            yield text[at : mark.start()], self._tokens.get(mark[1], ())
            at = mark.end()
        yield text[at:], ()

    def count(self, text: str) -> int:
        """Return the tokens of all images in a text."""
        if self._mark not in text:
            return 0
        return sum(len(tokens) for _, tokens in self.stretches(text))

    def without(self, text: str) -> str:
        """Return a text without its images."""
        return self._marks.sub("", text) if self._mark in text else text

    @contextmanager
    def held(self, ids: Sequence[int]) -> Iterator[Media]:
        """Give what is shown for a run of ids, cut again if its pixels were released. They stay meanwhile.

        Raises BadRequest, ImageError.
        """
        assert self._vision is not None
        key = key_of(ids)
        media = self._take(key)
        if media is None:
            image = self._images.get(key)
            if image is None:
                raise BadRequest("The image is gone.", hint="Send it again.")
            self._cut_image(image)
            media = self._take(key)
            assert media is not None
        try:
            yield media
        finally:
            with self._lock:
                if key in self._cut:
                    self._vision.release(media)
                else:
                    self._cut[key] = media

    def _take(self, key: tuple[int, ...]) -> Media | None:
        with self._lock:
            return self._cut.pop(key, None)
