"""Images and sounds as requests have them: data URLs, base64, or addresses, that are not in files yet.

A message that was decoded has a MARK in its text for each of its SentMedia; `edgechat.server.media` puts them
into files.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from edgechat.base.images.image import Image
from edgechat.base.sound.sound import Sound
from edgechat.engine.types import Message, Role
from edgechat.server.refusal import Refusal

MARK = f"\ue000{secrets.token_hex(8)}\ue000"
"""Stands where an image or a sound belongs until it has its place; random, so that no client can write it."""
_DATA_URL = re.compile(r"data:[^,;]{0,100}(?:;[^,;]{0,100}){0,4};base64,", re.IGNORECASE)
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)
_LONGEST_URL = 8192


class SentImage(Image, frozen=True, kw_only=True):
    """An image of a request: `base64`, or what is at `url`."""

    digest: str = ""
    path: str = ""
    width: int = 0
    height: int = 0
    at: str
    """The field of the request that has it."""
    base64: str = ""
    url: str = ""


class SentSound(Sound, frozen=True, kw_only=True):
    """A sound of a request."""

    digest: str = ""
    path: str = ""
    seconds: float = 0.0
    at: str
    """The field of the request that has it."""
    base64: str = ""


SentMedia = SentImage | SentSound


def sound_of(sent: str, at: str) -> SentSound:
    """Return the sound of a base64 text, which may be a data URL. Raises Refusal."""
    if sent[:5].lower() != "data:":
        return SentSound(at=at, base64=sent)
    if (data := _DATA_URL.match(sent)) is not None:
        return SentSound(at=at, base64=sent[data.end() :])
    raise Refusal(
        f"{at}: a sound must be base64, or a data URL, such as 'data:audio/wav;base64,...'.",
        param=at,
        code="invalid_value",
    )


def image_at(url: str, at: str) -> SentImage:
    """Return the image of a data URL, or of an address on the web. Raises Refusal."""
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
    """Return the image of a base64 text, which may be a data URL. Raises Refusal."""
    return image_at(sent, at) if sent[:5].lower() == "data:" else SentImage(at=at, base64=sent)


Part = str | SentMedia
"""A part of a message."""


def message_of(role: Role, parts: Iterable[Part], *, call_id: str = "") -> Message:
    """Return a message: its texts each on lines of their own, its media where they stand between them."""
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
