"""Headers of models that are not here yet: the first megabytes of their files, and nothing after them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from edgechat.errors import ModelFileError, RemoteFileChanged
from edgechat.models.choices import GgufChoice, RemoteFile, RepoListing
from edgechat.models.cursor import AGAIN
from edgechat.models.endpoint import Endpoint
from edgechat.models.gguf import FIRST_READ, one_model, read_growing
from edgechat.models.header import GgufHeader
from edgechat.models.refusals import changed, nonsense, unreachable
from edgechat.models.transfer import Answer, Client, Cut, ask_hub
from edgechat.text import one_line

TIME_LIMIT = 120.0
"""Seconds for the header of a model, all its parts together."""
LATER_READ = 1 << 18
"""Bytes asked for first of the second and later parts, which hold no tokenizer."""
MAX_CUTS = 4
"""Times that a connection may be cut while one file is read."""

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def read_remote_header(listing: RepoListing, choice: GgufChoice) -> GgufHeader:
    """Read the header of a model on the hub, of a split one the headers of all parts, as one.

    Reads 8 MiB of the file, then up to twice that, and so on up to cursor.MAX_HEADER. Raises HubError;
    ModelFileError where the file is no language model.
    """
    hub = Endpoint(listing.hub)

    def work(client: Client) -> GgufHeader:
        parts: list[GgufHeader] = []
        for file in choice.files:
            reader = RemoteStart(
                client, hub.file(listing.repo, listing.commit, file.name), file, listing.commit
            )
            start = LATER_READ if parts else FIRST_READ
            name = PurePosixPath(file.name).name
            parts.append(read_growing(reader.first, file.size, name, start=start))
        return one_model(parts)

    try:
        return ask_hub(hub, listing.repo, TIME_LIMIT, work)
    except ModelFileError as error:
        if error.hint != AGAIN:
            raise
        hint = "It is so on the hub itself: choose another file, or another repository."
        raise ModelFileError(error.message, hint=hint) from error


@dataclass(slots=True)
class RemoteStart:
    """The first bytes of a file on the hub, fetched as far as they are asked for and none twice."""

    client: Client
    url: str
    file: RemoteFile
    commit: str
    data: bytearray = field(default_factory=bytearray)
    etag: str | None = None
    cuts: int = 0

    def first(self, n: int) -> bytearray:
        """Return the first n bytes. Raises HubError."""
        while len(self.data) < n:
            before = len(self.data)
            try:
                self._fetch(n)
            except Cut:
                self.cuts += 1
            else:
                # An answer without a byte gets us no further: it counts as a connection that was cut.
                self.cuts += len(self.data) == before
            if self.cuts > MAX_CUTS:
                raise unreachable(self.url, f"the connection was cut {self.cuts} times")
        return self.data[:n]

    def _fetch(self, n: int) -> None:
        """Ask for what is missing of the first n bytes, and take what comes. Raises HubError, Cut."""
        headers = {"Range": f"bytes={len(self.data)}-{n - 1}"}
        if self.etag is not None and not self.etag.startswith("W/"):
            headers["If-Range"] = self.etag
        with self.client.get(self.url, headers) as answer:
            self._check_file(answer)
            end = self._begin(answer, n)
            for piece in answer.pieces:
                room = end - len(self.data)
                self.data += piece[:room]
                if len(piece) > room and answer.status == 206:
                    raise nonsense(answer.url, f"sends more of {self.file.name} than was asked for")
                if len(self.data) >= end and answer.status == 200:
                    return
        if len(self.data) < end:
            raise Cut("the answer is shorter than it said")

    def _check_file(self, answer: Answer) -> None:
        """Raise RemoteFileChanged where this is not the file that was listed, or not the one read before."""
        size, etag = answer.linked.get("x-linked-size"), answer.linked.get("x-linked-etag", "").strip('"')
        commit = answer.linked.get("x-repo-commit", self.commit)
        hashed = _SHA256.fullmatch(etag) and self.file.sha256
        if (size is not None and size != str(self.file.size)) or (hashed and etag != self.file.sha256):
            raise self._changed()
        if commit != self.commit:
            raise self._changed()
        found = answer.headers.get("etag")
        if self.etag is not None and found != self.etag:
            raise self._changed()
        self.etag = found

    def _begin(self, answer: Answer, n: int) -> int:
        """Check what the answer says it holds; return how many bytes there will be then."""
        if answer.status == 200:  # all of it: a server that knows no ranges
            length = answer.headers.get("content-length", str(self.file.size))
            if length != str(self.file.size):
                raise self._changed()
            self.data.clear()
            return n
        match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        if match is None:
            raise nonsense(answer.url, f"does not say which part of {self.file.name} it sends")
        start, last = int(match[1]), int(match[2])
        if match[3] not in ("*", str(self.file.size)):
            raise self._changed()
        length = answer.headers.get("content-length", str(last - start + 1))
        if start != len(self.data) or not start <= last < n or length != str(last - start + 1):
            raise nonsense(answer.url, f"sends another part of {self.file.name} than was asked for")
        return last + 1

    def _changed(self) -> RemoteFileChanged:
        return changed(one_line(self.file.name))
