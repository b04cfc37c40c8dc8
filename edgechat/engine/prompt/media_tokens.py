"""Media tokens: the tokens for images and sounds in prompts.

Each file is decoded and cut into parts once, and cached by its content. In a rendered prompt, a mark stands
for the file: its digest between two copies of a character that no text contains. Images and sounds can
therefore pass through templates as text. When this text is tokenized, it is split at the marks.
"""

from __future__ import annotations

import random
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from edgechat.base.errors import BadRequest
from edgechat.base.images.image import PLACE, Decoder, Image, Pixels
from edgechat.base.sound.sound import Samples, SoundDecoder
from edgechat.engine.backends.base import Media, MediaEncoder, key_of
from edgechat.engine.types import MediaFile, Message

_RUNS = 8192
_REMEMBERED = 256
"""Maximum number of files whose tokens are cached."""
MOST_MEDIA = 128
"""Maximum number of images and sounds in a request."""
_CUT = 16
"""Maximum number of parts cached for the encoder, about 10 MB each."""

Decode = Callable[[MediaFile, int], Pixels | Samples]
"""Function that decodes a file. The number is the sample rate for sounds."""


def decoded(file: MediaFile, rate: int) -> Pixels | Samples:
    """Decode a file in a child process. Raises MediaError."""
    if isinstance(file, Image):
        with Decoder() as decoder:
            return decoder.pixels(Path(file.path))
    with SoundDecoder() as sounds:
        return sounds.samples(Path(file.path), rate)


class MediaTokens:
    """The images and sounds in a model's prompts. Thread-safe."""

    def __init__(
        self, encoder: MediaEncoder | None = None, decode: Decode = decoded, *, why_not: str = ""
    ) -> None:
        """encoder: if None, images and sounds are rejected. why_not: the reason, as a sentence."""
        self._why_not = why_not
        self._encoder = encoder
        self._decode = decode
        # A private-use character outside the range of ControlTokens, chosen at random in each process.
        self._mark = chr(random.SystemRandom().randrange(0x100000, 0x10FFFE))
        self._marks = re.compile(f"{self._mark}([0-9a-f]{{32}}){self._mark}")
        self._tokens: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._files: OrderedDict[tuple[int, ...], MediaFile] = OrderedDict()
        """Maps each run of media ids to the file it belongs to."""
        self._cut: OrderedDict[tuple[int, ...], Media] = OrderedDict()
        self._lock = threading.Lock()

    def marked(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Cut all images and sounds into parts, and return the messages with marks in their place.

        Raises MediaError, or BadRequest if there are too many or the model does not support them.
        """
        if sum(len(message.media) for message in messages) > MOST_MEDIA:
            raise BadRequest(
                f"A conversation can have up to {MOST_MEDIA} images and sounds.", hint="Send fewer."
            )
        return tuple(map(self._marked, messages))

    def _marked(self, message: Message) -> Message:
        text = message.content.replace(self._mark, "")
        if not message.media:
            return message if text is message.content else replace(message, content=text)
        for file in message.media:
            self._remember(file)
        marks = [f"{self._mark}{file.digest}{self._mark}" for file in message.media]
        parts = text.split(PLACE)
        n_unplaced = max(0, len(marks) - (len(parts) - 1))
        placed, rest = marks[n_unplaced:], parts[len(marks) - n_unplaced + 1 :]
        text = parts[0] + "".join(mark + part for mark, part in zip(placed, parts[1:], strict=False))
        return replace(message, content="".join(marks[:n_unplaced]) + text + "".join(rest), media=())

    def _remember(self, file: MediaFile) -> None:
        with self._lock:
            if file.digest in self._tokens:
                self._tokens.move_to_end(file.digest)
                return
        self._cut_file(file)

    def _able(self, file: MediaFile) -> MediaEncoder:
        """Return the encoder. Raises BadRequest if it does not support this kind of file."""
        is_image, encoder = isinstance(file, Image), self._encoder
        if encoder is not None and (encoder.sees if is_image else encoder.hears):
            return encoder
        kind, what = ("images", "image") if is_image else ("audio", "sound")
        raise BadRequest(
            self._why_not or f"This model does not support {kind}.",
            hint=f"Use a model that supports {kind} (`edgechat list` shows which), or leave the {what} out.",
        )

    def _cut_file(self, file: MediaFile) -> None:
        """Decode an image or sound, cut it into parts and cache them."""
        encoder = self._able(file)
        parts = encoder.cut(self._decode(file, encoder.sample_rate), file.digest)
        tokens: list[int] = []
        with self._lock:
            for part in parts:
                if isinstance(part, Media):
                    tokens += part.ids
                    key = key_of(part.ids)
                    self._files[key] = file
                    self._files.move_to_end(key)
                    while len(self._files) > _RUNS:
                        self._files.popitem(last=False)
                    if key in self._cut:
                        encoder.release(part)
                    else:
                        self._cut[key] = part
                else:
                    tokens += part
            self._tokens[file.digest] = tuple(tokens)
            while len(self._cut) > max(_CUT, len(parts)):
                encoder.release(self._cut.popitem(last=False)[1])
            while len(self._tokens) > _REMEMBERED:
                self._tokens.popitem(last=False)

    def stretches(self, text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Split rendered text at its marks; yield pairs of text and the tokens of the file after it."""
        at = 0
        for mark in self._marks.finditer(text):
            yield text[at : mark.start()], self._tokens.get(mark[1], ())
            at = mark.end()
        yield text[at:], ()

    def count(self, text: str) -> int:
        """Return the total number of tokens for the images and sounds in `text`."""
        if self._mark not in text:
            return 0
        return sum(len(tokens) for _, tokens in self.stretches(text))

    def without(self, text: str) -> str:
        """Return `text` with its media marks removed."""
        return self._marks.sub("", text) if self._mark in text else text

    @contextmanager
    def held(self, ids: Sequence[int]) -> Iterator[Media]:
        """Yield the media with these ids, keeping it in memory until the context exits.

        If it was released earlier, its file is cut into parts again. Raises BadRequest and MediaError.
        """
        assert self._encoder is not None
        key = key_of(ids)
        media = self._take(key)
        if media is None:
            file = self._files.get(key)
            if file is None:
                raise BadRequest("The image or sound is no longer available.", hint="Send it again.")
            self._cut_file(file)
            media = self._take(key)
            assert media is not None
        try:
            yield media
        finally:
            with self._lock:
                if key in self._cut:
                    self._encoder.release(media)
                else:
                    self._cut[key] = media

    def _take(self, key: tuple[int, ...]) -> Media | None:
        with self._lock:
            return self._cut.pop(key, None)
