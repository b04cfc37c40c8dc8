"""Images and audio in requests: turns data URLs, base64 and web addresses into files that the engine reads.

In a decoded message, a MARK in the text stands for each SentMedia. `RequestMedia` stores the media in files
while the request runs, and keeps them for some time afterwards, because clients send the same media again
with every turn. Whether the model can see or hear is not known until it is loaded.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgechat.base.errors import (
    ImageError,
    ImageNotStored,
    MediaError,
    SettingsError,
    SoundError,
    SoundNotStored,
)
from edgechat.base.file_library import digest_of
from edgechat.base.images.image import PLACE, Decoder, Image, ImageLibrary
from edgechat.base.network.offline import offline_by
from edgechat.base.network.web import NotFetched, PublicWeb, Resolve, addresses_of
from edgechat.base.process.file_decoder import MAX_FILE_BYTES
from edgechat.base.sound.sound import Sound, SoundDecoder, SoundLibrary
from edgechat.base.text import mebibytes, one_line
from edgechat.engine.types import ChatRequest, MediaFile, Message, ModelInfo, Role
from edgechat.models.catalogue import catalogue
from edgechat.server.pool.models import ModelCard, ServedModel
from edgechat.server.refusal import Refusal

if TYPE_CHECKING:
    import httpx2


UNREAD = "[An image, a sound or a file, which this model cannot read.]"
"""Text that replaces tool results the model cannot read, because a refusal would end the conversation."""
MARK = f"\ue000{secrets.token_hex(8)}\ue000"
"""Marker for the position of an image or audio clip in text. Random, so that no client can forge it."""
_DATA_URL = re.compile(r"data:[^,;]{0,100}(?:;[^,;]{0,100}){0,4};base64,", re.IGNORECASE)
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)
_LONGEST_URL = 8192


class SentImage(Image, frozen=True, kw_only=True):
    """An image in a request, given as `base64` or as a `url` to fetch."""

    digest: str = ""
    path: str = ""
    width: int = 0
    height: int = 0
    at: str
    """The field of the request that contains it."""
    base64: str = ""
    url: str = ""


class SentSound(Sound, frozen=True, kw_only=True):
    """An audio clip in a request."""

    digest: str = ""
    path: str = ""
    seconds: float = 0.0
    at: str
    """The request field that contains the image or sound."""
    base64: str = ""


SentMedia = SentImage | SentSound
Cards = Callable[[], Sequence[ModelCard]]
"""Lists all models. Must be called in a thread."""


def sound_of(sent: str, at: str) -> SentSound:
    """Return an audio clip sent as base64 or a data URL. Raises Refusal."""
    if sent[:5].lower() != "data:":
        return SentSound(at=at, base64=sent)
    if (data := _DATA_URL.match(sent)) is not None:
        return SentSound(at=at, base64=sent[data.end() :])
    raise Refusal(
        f"{at}: audio must be base64 or a data URL, such as 'data:audio/wav;base64,...'.",
        param=at,
        code="invalid_value",
    )


def image_at(url: str, at: str) -> SentImage:
    """Return an image sent as a data URL or a web address. Raises Refusal."""
    if (data := _DATA_URL.match(url)) is not None:
        return SentImage(at=at, base64=url[data.end() :])
    if _WEB_URL.match(url) is not None and len(url) <= _LONGEST_URL:
        return SentImage(at=at, url=url)
    raise Refusal(
        f"{at}: an image must be a data URL, such as 'data:image/png;base64,...', or an http(s) URL.",
        param=at,
        code="invalid_value",
    )


def image_of(sent: str, at: str) -> SentImage:
    """Return an image sent as base64 or a data URL. Raises Refusal."""
    return image_at(sent, at) if sent[:5].lower() == "data:" else SentImage(at=at, base64=sent)


Part = str | SentMedia


def message_of(role: Role, parts: Iterable[Part], *, call_id: str = "") -> Message:
    """Return a message with a MARK for each image and audio clip. Consecutive texts go on separate lines."""
    pieces: list[str] = []
    media: list[SentMedia] = []
    for part in parts:
        if isinstance(part, SentMedia):
            media.append(part)
            pieces.append(MARK)
        else:
            follows_text = bool(pieces) and pieces[-1] is not MARK
            pieces.append(f"\n{part}" if follows_text else part)
    return Message(role, "".join(pieces), call_id=call_id, media=tuple(media))


MAX_BYTES = 32 * 2**20
"""Maximum size of a fetched image."""
SECONDS = 15.0
"""Time limit for fetching one image."""
_HINT = "Send it as a data URL."


class ImageFetcher:
    """Fetches images from the web, within the limits of `edgechat.base.network.web`. Thread-safe."""

    def __init__(
        self, *, resolve: Resolve = addresses_of, transport: httpx2.BaseTransport | None = None
    ) -> None:
        """resolve, transport: replaced in tests."""
        self._web = PublicWeb("image/*", resolve=resolve, transport=transport)

    def fetch(self, url: str, *, most_bytes: int = MAX_BYTES, seconds: float = SECONDS) -> bytes:
        """Return the bytes at a URL, without checking that they are an image. Raises ImageError."""
        if (switch := offline_by()) is not None:
            raise ImageError(f"Images cannot be fetched: {switch} keeps edgechat offline.", hint=_HINT)
        limit, seconds = min(most_bytes, MAX_BYTES), min(seconds, SECONDS)
        try:
            return self._web.fetch(url, most_bytes=limit, seconds=seconds).data
        except NotFetched as error:
            message = f"The image at {one_line(url, 120)} cannot be fetched: {error}."
            raise ImageError(message, hint=_HINT) from error


def takes(model: ModelInfo, sent: SentMedia) -> bool:
    """Return True if a model can process what was sent: an image or an audio clip."""
    return model.sees if isinstance(sent, SentImage) else model.hears


async def refuse_untaken(
    sent: Sequence[tuple[Message, SentMedia]], served: ServedModel, cards: Cards
) -> None:
    """Raise Refusal if the model cannot see or hear what a user sent. The message suggests one of `cards`."""
    for message, one in sent:
        if message.role == "tool" or takes(served.model, one):
            continue
        is_image = isinstance(one, SentImage)
        able = "process images" if is_image else "process audio"
        other = _other(await asyncio.to_thread(cards), is_image=is_image)
        raise Refusal(f"{one.at}: {served.name} cannot {able}. {other}", param=one.at, code="invalid_value")


def _other(cards: Sequence[ModelCard], *, is_image: bool) -> str:
    """Suggest a model that can see images (or hear audio): one on this machine, or one to download."""
    modality = "image" if is_image else "audio"
    here = next((card.id for card in cards if (card.sees if is_image else card.hears)), None)
    if here is not None:
        return f"{here} can: request that model instead."
    listed = f"No model here accepts {modality!r} input; see `input_modalities` in /v1/models."
    try:
        known = [one for one in catalogue() if (one.vision if is_image else one.audio)]
    except SettingsError:
        known = []
    # Lower-quality models are smaller, so this one fits nearly any machine.
    smallest = min(known, key=lambda one: one.quality or math.inf, default=None)
    return f"{listed} To download one: edgechat pull {smallest.name}" if smallest is not None else listed


MOST = 256
"""Maximum number of images and audio clips in one request."""
MOST_FETCHED = 64 * 2**20
"""Maximum number of bytes fetched for one request."""
FETCH_SECONDS = 30.0
"""Time limit for fetching all images in one request."""
MOST_STORED = 2**30
"""Maximum total size of all stored images; the same limit applies to all stored audio clips."""
MOST_SECONDS = 7 * 86400.0
"""Number of seconds after which a file is deleted if no client has sent it again."""
_THREADS = 4
_PIECE = 1 << 20
"""Number of base64 characters to decode at a time. Decoding that many takes a few milliseconds."""
_STAND_IN = "\N{REPLACEMENT CHARACTER}"
"""Replacement for PLACE in text from clients, where it would be mistaken for the place of an image."""
_LOG = logging.getLogger(__name__)


class RequestMedia:
    """Storage for images and audio from requests, in a folder. Bound to one event loop."""

    def __init__(self, folder: Path, *, fetcher: ImageFetcher | None = None) -> None:
        """fetcher: fetches images from the web, or None to refuse web addresses."""
        self._images = ImageLibrary(folder)
        self._sounds = SoundLibrary(folder / "sounds")
        self._fetcher = fetcher
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="media")
        self._decoding = threading.Lock()
        """Held while a file is being decoded, because decoding one can take a gigabyte of memory."""
        self._used: Counter[str] = Counter()
        """How many requests are using each file, by digest."""
        self._counting = threading.Lock()
        """Held while `_used` changes or an unused file is deleted."""
        self._new_bytes = 0
        """Number of bytes stored since the last pruning."""

    @asynccontextmanager
    async def placed(
        self, request: ChatRequest, served: ServedModel, cards: Cards
    ) -> AsyncIterator[ChatRequest]:
        """Yield the request with its images and audio in files, which exist while the context is open.

        cards: the models that a refusal can suggest. Raises Refusal if the model cannot see or hear what a
        user sent. Tool results that the model cannot read are replaced with notes.
        """
        sent = [
            (message, one)
            for message in request.messages
            for one in message.media
            if isinstance(one, SentMedia)
        ]
        if len(sent) > MOST:
            raise Refusal(
                f"The request has {len(sent)} images and audio clips; the limit is {MOST}.", status=413
            )
        await refuse_untaken(sent, served, cards)
        if not sent:
            yield _with_places(request, [])
            return
        held = ExitStack()
        loop = asyncio.get_running_loop()
        storing = loop.run_in_executor(self._threads, self._store, sent, served.model, held)
        try:
            yield _with_places(request, await asyncio.shield(storing))
        finally:
            if storing.done():
                held.close()
            else:  # after a cancellation, the thread keeps running for a while
                storing.add_done_callback(lambda done: _let_go(done, held))

    def prune(self) -> None:
        """Delete expired files, and the oldest if all take too much space, but never files in use. Blocks."""
        try:
            for library in (self._images, self._sounds):
                self._prune(library)
        except (MediaError, OSError) as error:
            _LOG.warning("Images and audio clips from earlier requests could not be deleted: %s", error)

    def _prune(self, library: ImageLibrary | SoundLibrary) -> None:
        oldest = time.time() - MOST_SECONDS
        stored = sorted(library.stored(), key=lambda one: one.used)
        library.prune({one.digest for one in stored})  # removes what a crash left behind
        too_many = sum(one.size for one in stored) - MOST_STORED
        for one in stored:
            if too_many > 0 or one.used < oldest:
                too_many -= one.size if self._remove_unused(library, one.digest) else 0

    def _remove_unused(self, library: ImageLibrary | SoundLibrary, digest: str) -> bool:
        with self._counting:
            if digest in self._used:
                return False
            library.remove(digest)
            return True

    def _store(
        self, sent: Sequence[tuple[Message, SentMedia]], model: ModelInfo, held: ExitStack
    ) -> list[MediaFile | None]:
        """Return the stored files, with None for tool results that the model cannot read. Raises Refusal.

        held: marks the files as in use until it is closed.
        """
        found: list[MediaFile | None] = []
        fetches = _Fetches(self._fetcher)
        with Decoder() as images, SoundDecoder() as sounds:
            for message, one in sent:
                try:
                    if not takes(model, one):
                        found.append(None)
                    elif isinstance(one, SentImage):
                        data = fetches.fetch(one.url) if one.url else _decoded(one, ImageError)
                        add_image = partial(self._images.add, data, decoder=images)
                        found.append(held.enter_context(self._kept(data, add_image)))
                    else:
                        data = _decoded(one, SoundError)
                        add_sound = partial(self._sounds.add, data, sounds)
                        found.append(held.enter_context(self._kept(data, add_sound)))
                except (ImageNotStored, SoundNotStored):
                    raise
                except MediaError as error:
                    if message.role != "tool":
                        raise _refused(one, error) from error
                    found.append(None)
        return found

    @contextmanager
    def _kept(self, data: bytes, add: Callable[[], MediaFile]) -> Iterator[MediaFile]:
        digest = digest_of(data)
        with self._counting:
            self._used[digest] += 1
        try:
            with self._decoding:
                file = add()
                self._new_bytes += len(data)
                if self._new_bytes > MOST_STORED // 16:
                    self._new_bytes = 0
                    self.prune()
            yield file
        finally:
            with self._counting:
                self._used[digest] -= 1
                if not self._used[digest]:
                    del self._used[digest]


def _let_go(done: asyncio.Future[list[MediaFile | None]], held: ExitStack) -> None:
    held.close()
    if not done.cancelled():
        done.exception()  # marks it as retrieved: there may be no client left to tell


class _Fetches:
    """The image fetches for one request, with limits on their total size and time."""

    def __init__(self, fetcher: ImageFetcher | None) -> None:
        self._fetcher = fetcher
        self._bytes = MOST_FETCHED
        self._seconds = FETCH_SECONDS

    def fetch(self, url: str) -> bytes:
        """Return the bytes of an image file. Raises ImageError."""
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


def _decoded(sent: SentMedia, wrong: type[MediaError]) -> bytes:
    """Decode base64. Raises `wrong` if it is too long or not valid."""
    what = "image" if isinstance(sent, SentImage) else "audio clip"
    if len(sent.base64) > MAX_FILE_BYTES * 3 // 2:
        raise wrong(f"The {what} is larger than the limit of {mebibytes(MAX_FILE_BYTES)}.")
    plain = "".join(sent.base64.split())
    try:  # in pieces, so that streams do not stall
        return b"".join(
            binascii.a2b_base64(plain[start : start + _PIECE], strict_mode=True)
            for start in range(0, len(plain), _PIECE)
        )
    except ValueError as error:
        raise wrong(f"The {what} is not valid base64.") from error


def _refused(sent: SentMedia, error: MediaError) -> Refusal:
    text = " ".join(part for part in (f"{sent.at}: {error.message}", error.hint) if part)
    code = "invalid_image" if isinstance(sent, SentImage) else "invalid_audio"
    return Refusal(text, param=sent.at, code=code)


def _with_places(request: ChatRequest, found: Sequence[MediaFile | None]) -> ChatRequest:
    """Return a request with its media replaced by the stored files."""
    files = iter(found)
    messages = tuple(_with_places_in(message, files) for message in request.messages)
    return msgspec.structs.replace(request, messages=messages)


def _with_places_in(message: Message, files: Iterator[MediaFile | None]) -> Message:
    content = message.content.replace(PLACE, _STAND_IN)
    if not message.media:
        return message if content == message.content else msgspec.structs.replace(message, content=content)
    shown = list(islice(files, len(message.media)))
    first, *others = content.split(MARK)
    text = first
    for file, after in zip(shown, others, strict=True):
        if file is None:
            text = "\n".join(part for part in (text, UNREAD, after.removeprefix("\n")) if part)
        else:
            text += PLACE + after
    kept = tuple(file for file in shown if file is not None)
    return msgspec.structs.replace(message, content=text, media=kept)
