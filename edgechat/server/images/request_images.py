"""The images of requests: in files while they are used, and for a while after, as clients send them again.

What a model can do with them is decided here for all protocols, when it is loaded and that is known.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from edgechat.base.errors import ImageError, ImageNotStored
from edgechat.base.images.decoding import MAX_FILE_BYTES, Decoder
from edgechat.base.images.image import PLACE, Image
from edgechat.base.images.library import ImageLibrary, digest_of
from edgechat.base.text import mebibytes
from edgechat.engine.types import ChatRequest, Message
from edgechat.server.http.refusal import Refusal
from edgechat.server.images.fetching import ImageFetcher
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.decoding import UNREAD
from edgechat.server.protocol.images import MARK, SentImage

MOST = 256
"""Images of one request."""
MOST_FETCHED = 64 * 2**20
"""Bytes that are fetched for one request."""
FETCH_SECONDS = 30.0
"""For all images of one request."""
MOST_STORED = 2**30
"""Bytes of all images that are kept."""
MOST_SECONDS = 7 * 86400.0
"""Time after which an image that was not sent again is deleted."""
_THREADS = 4
_PIECE = 1 << 20
"""Characters of base64 that are decoded at once, in a few milliseconds."""
_STAND_IN = "\N{REPLACEMENT CHARACTER}"
"""For PLACE in the texts of clients, where it would move images."""
_LOG = logging.getLogger(__name__)


class RequestImages:
    """Puts the images of requests into a folder, and their places into the messages. Belongs to one loop."""

    def __init__(self, folder: Path, *, fetcher: ImageFetcher | None = None) -> None:
        """fetcher: gets images from the web; None: they are refused."""
        self._library = ImageLibrary(folder)
        self._fetcher = fetcher
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")
        self._decoding = threading.Lock()
        """Held while an image is decoded: each can take a gigabyte."""
        self._used: Counter[str] = Counter()
        """How many requests use an image, by its digest."""
        self._counting = threading.Lock()
        """Held while that changes, or an image is deleted that nobody uses."""
        self._new_bytes = 0
        """Since images were deleted last."""

    @asynccontextmanager
    async def placed(self, request: ChatRequest, served: ServedModel) -> AsyncIterator[ChatRequest]:
        """Give a request whose images are files, for as long as it is used.

        Raises Refusal if the model cannot see what a user shows it. What a tool has returned becomes a note
        where it cannot be shown.
        """
        sent = list(_sent_in(request))
        if len(sent) > MOST:
            raise Refusal(f"The request has {len(sent)} images; the limit is {MOST}.", status=413)
        if not served.model.sees:
            _refuse_unseen(sent, served.name)
            yield _with_places(request, [None] * len(sent))
            return
        if not sent:
            yield _with_places(request, [])
            return
        held = ExitStack()
        loop = asyncio.get_running_loop()
        storing = loop.run_in_executor(self._threads, self._store, sent, held)
        try:
            yield _with_places(request, await asyncio.shield(storing))
        finally:
            if storing.done():
                held.close()
            else:  # cancelled, it goes on for a while
                storing.add_done_callback(lambda done: _let_go(done, held))

    def prune(self) -> None:
        """Delete images that are old, and the oldest of too many, but none in use. Blocks on the disk."""
        oldest = time.time() - MOST_SECONDS
        try:
            stored = sorted(self._library.stored(), key=lambda one: one.used)
            self._library.prune({one.digest for one in stored})  # what a crash has left
            too_many = sum(one.size for one in stored) - MOST_STORED
            for one in stored:
                if too_many > 0 or one.used < oldest:
                    too_many -= one.size if self._remove_unused(one.digest) else 0
        except (ImageError, OSError) as error:
            _LOG.warning("Images of earlier requests could not be deleted: %s", error)

    def _remove_unused(self, digest: str) -> bool:
        with self._counting:
            if digest in self._used:
                return False
            self._library.remove(digest)
            return True

    def _store(self, sent: Sequence[tuple[Message, SentImage]], held: ExitStack) -> list[Image | None]:
        """Return the stored images; None for those of tools that cannot be shown. Raises Refusal.

        held: keeps them.
        """
        found: list[Image | None] = []
        fetches = _Fetches(self._fetcher)
        with Decoder() as decoder:
            for message, image in sent:
                try:
                    data = fetches.fetch(image.url) if image.url else _decoded(image.base64)
                    found.append(held.enter_context(self._kept(data, decoder)))
                except ImageNotStored:
                    raise
                except ImageError as error:
                    if message.role != "tool":
                        raise _refused(image, error) from error
                    found.append(None)
        return found

    @contextmanager
    def _kept(self, data: bytes, decoder: Decoder) -> Iterator[Image]:
        digest = digest_of(data)
        with self._counting:
            self._used[digest] += 1
        try:
            with self._decoding:
                image = self._library.add(data, decoder=decoder)
                self._new_bytes += len(data)
                if self._new_bytes > MOST_STORED // 16:
                    self._new_bytes = 0
                    self.prune()
            yield image
        finally:
            with self._counting:
                self._used[digest] -= 1
                if not self._used[digest]:
                    del self._used[digest]


def _let_go(done: asyncio.Future[list[Image | None]], held: ExitStack) -> None:
    held.close()
    if not done.cancelled():
        done.exception()  # nobody may be left to be told of it


class _Fetches:
    """What one request has fetched from the web, which is bounded in bytes and time."""

    def __init__(self, fetcher: ImageFetcher | None) -> None:
        self._fetcher = fetcher
        self._bytes = MOST_FETCHED
        self._seconds = FETCH_SECONDS

    def fetch(self, url: str) -> bytes:
        """Return an image's file. Raises ImageError."""
        if self._fetcher is None:
            raise ImageError(
                "Images are not fetched from the web.",
                hint="Send it as a data URL, or start the server with `edgechat serve --fetch-images`.",
            )
        began = time.monotonic()
        data = self._fetcher.fetch(url, most_bytes=self._bytes, seconds=self._seconds)
        self._seconds = max(0.0, self._seconds - (time.monotonic() - began))
        self._bytes -= len(data)
        return data


def _sent_in(request: ChatRequest) -> Iterator[tuple[Message, SentImage]]:
    for message in request.messages:
        for image in message.images:
            assert isinstance(image, SentImage)
            yield message, image


def _decoded(text: str) -> bytes:
    """Return the bytes of base64. Raises ImageError."""
    if len(text) > MAX_FILE_BYTES * 3 // 2:
        raise ImageError(f"The image has more than {mebibytes(MAX_FILE_BYTES)}, the limit.")
    plain = "".join(text.split())
    try:  # in pieces, between which streams go on
        return b"".join(
            binascii.a2b_base64(plain[start : start + _PIECE], strict_mode=True)
            for start in range(0, len(plain), _PIECE)
        )
    except ValueError as error:
        raise ImageError("The image is not valid base64.") from error


def _refuse_unseen(sent: Sequence[tuple[Message, SentImage]], model: str) -> None:
    """Raise Refusal if a user shows something to a model that cannot see."""
    for message, image in sent:
        if message.role != "tool":
            raise Refusal(
                f"{image.at}: {model} cannot see images. Send only text, or name a model whose "
                "`input_modalities` in /v1/models include image.",
                param=image.at,
                code="invalid_value",
            )


def _refused(image: SentImage, error: ImageError) -> Refusal:
    text = " ".join(part for part in (f"{image.at}: {error.message}", error.hint) if part)
    return Refusal(text, param=image.at, code="invalid_image")


def _with_places(request: ChatRequest, found: Sequence[Image | None]) -> ChatRequest:
    """Return a request with these images in the places of those that were sent."""
    images = iter(found)
    messages = tuple(_with_places_in(message, images) for message in request.messages)
    return msgspec.structs.replace(request, messages=messages)


def _with_places_in(message: Message, images: Iterator[Image | None]) -> Message:
    content = message.content.replace(PLACE, _STAND_IN)
    if not message.images:
        return message if content == message.content else msgspec.structs.replace(message, content=content)
    shown = list(islice(images, len(message.images)))
    first, *others = content.split(MARK)
    text = first
    for image, after in zip(shown, others, strict=True):
        if image is None:
            text = "\n".join(part for part in (text, UNREAD, after.removeprefix("\n")) if part)
        else:
            text += PLACE + after
    kept = tuple(image for image in shown if image is not None)
    return msgspec.structs.replace(message, content=text, images=kept)
