"""Images from the web, for servers that may fetch them; `edgechat.base.network.web` says what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgechat.base.errors import ImageError
from edgechat.base.network.offline import offline_by
from edgechat.base.network.web import NotFetched, PublicWeb, Resolve, addresses_of
from edgechat.base.text import one_line

if TYPE_CHECKING:
    import httpx2

MAX_BYTES = 32 * 2**20
"""Of one image."""
SECONDS = 15.0
"""For one image."""
_HINT = "Send it as a data URL."


class ImageFetcher:
    """Fetches images. Thread-safe."""

    def __init__(
        self, *, resolve: Resolve = addresses_of, transport: httpx2.BaseTransport | None = None
    ) -> None:
        """resolve, transport: for tests."""
        self._web = PublicWeb("image/*", resolve=resolve, transport=transport)

    def fetch(self, url: str, *, most_bytes: int = MAX_BYTES, seconds: float = SECONDS) -> bytes:
        """Return what is at a URL: bytes, of whatever kind. Raises ImageError."""
        if (switch := offline_by()) is not None:
            raise ImageError(f"Images cannot be fetched: {switch} keeps edgechat offline.", hint=_HINT)
        limit, seconds = min(most_bytes, MAX_BYTES), min(seconds, SECONDS)
        try:
            return self._web.fetch(url, most_bytes=limit, seconds=seconds).data
        except NotFetched as error:
            message = f"The image at {one_line(url, 120)} cannot be fetched: {error}."
            raise ImageError(message, hint=_HINT) from error
