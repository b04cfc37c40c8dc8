"""Range requests: whether a response is the requested part of the listed file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgechat.base.errors import RemoteFileChanged
from edgechat.base.text import one_line
from edgechat.models.choices import RemoteFile
from edgechat.models.hub.errors import changed, nonsense
from edgechat.models.hub.http.transfer import HubResponse
from edgechat.models.local.hashes import is_digest

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


@dataclass(slots=True)
class RangedFile:
    """A file as listed at a commit, and the ETag of the host that stores it."""

    file: RemoteFile
    commit: str
    etag: str | None = None
    """Of the last response."""

    def headers(self, at: int, end: int) -> dict[str, str]:
        """Return the request headers for the bytes from `at` to before `end`."""
        headers = {"Range": f"bytes={at}-{end - 1}"}
        if self.etag is not None and not self.etag.startswith("W/"):
            headers["If-Range"] = self.etag
        return headers

    def is_unchanged(self, answer: HubResponse) -> bool:
        """Return whether the keeper calls the file what it did before, and remember what it does now.

        Raises RemoteFileChanged where the hub itself says that this is not the file that was listed.
        """
        size, etag = answer.linked.get("x-linked-size"), answer.linked.get("x-linked-etag", "").strip('"')
        digest = self.file.digest
        is_other = digest is not None and is_digest(etag) and len(etag) == len(digest) and etag != digest
        if (size is not None and size != str(self.file.size)) or is_other:
            raise self.changed()
        if answer.linked.get("x-repo-commit", self.commit) != self.commit:
            raise self.changed()
        before, self.etag = self.etag, answer.headers.get("etag")
        return before in (None, self.etag)

    def part(self, answer: HubResponse, at: int, end: int) -> tuple[int, int]:
        """Return the range of a response to a request for the bytes from `at` to before `end`.

        It may begin at 0 instead, and then holds all of the file; it may end earlier. Raises HubError.
        """
        if answer.status == 200:  # all of it: a server that knows no ranges
            length = answer.headers.get("content-length", str(self.file.size))
            if length != str(self.file.size):
                raise self.changed()
            return 0, self.file.size
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        if match is None:
            raise nonsense(answer.url, f"did not say which part of {one_line(self.file.name)} it sent")
        start, last = int(match[1]), int(match[2])
        if match[3] not in ("*", str(self.file.size)):
            raise self.changed()
        length = answer.headers.get("content-length", str(last - start + 1))
        if start != at or not start <= last < end or length != str(last - start + 1):
            raise nonsense(
                answer.url, f"sent a different part of {one_line(self.file.name)} than was requested"
            )
        return start, last + 1

    def changed(self) -> RemoteFileChanged:
        """Return the error for a file that differs from the listing."""
        return changed(one_line(self.file.name))
