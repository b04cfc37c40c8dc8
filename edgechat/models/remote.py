"""Headers of models that are not here yet: the first megabytes of their files, and nothing after them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from edgechat.errors import ModelFileError
from edgechat.models.choices import ModelChoice, RepoListing
from edgechat.models.cursor import AGAIN
from edgechat.models.endpoint import Endpoint
from edgechat.models.gguf import FIRST_READ, one_model, read_growing
from edgechat.models.header import ModelHeader
from edgechat.models.ranged import RangedFile
from edgechat.models.refusals import nonsense, unreachable
from edgechat.models.transfer import Client, Cut, ask_hub
from edgechat.text import one_line

TIME_LIMIT = 120.0
"""Seconds for the header of a model, all its parts together."""
LATER_READ = 1 << 18
"""Bytes asked for first of the second and later parts, which hold no tokenizer."""
MAX_CUTS = 4
"""Times that a connection may be cut while one file is read."""


def read_remote_header(listing: RepoListing, choice: ModelChoice) -> ModelHeader:
    """Read the header of a model on the hub, of a split one the headers of all parts, as one.

    Reads 8 MiB of the file, then up to twice that, and so on up to cursor.MAX_HEADER. Raises HubError;
    ModelFileError where the file is no language model.
    """
    hub = Endpoint(listing.hub)

    def work(client: Client) -> ModelHeader:
        parts: list[ModelHeader] = []
        for file in choice.files:
            url = hub.file(listing.repo, listing.commit, file.name)
            reader = RemoteStart(client, url, RangedFile(file, listing.commit))
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
    ranged: RangedFile
    data: bytearray = field(default_factory=bytearray)
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
        at = len(self.data)
        with self.client.get(self.url, self.ranged.headers(at, n)) as answer:
            if not self.ranged.same(answer):
                raise self.ranged.changed()
            start, end = self.ranged.part(answer, at, n)
            del self.data[start:]
            end = min(end, n)
            for piece in answer.pieces:
                room = end - len(self.data)
                self.data += piece[:room]
                if len(piece) > room and answer.status == 206:
                    name = one_line(self.ranged.file.name)
                    raise nonsense(answer.url, f"sends more of {name} than was asked for")
                if len(self.data) >= end and answer.status == 200:
                    return
        if len(self.data) < end:
            raise Cut("the answer is shorter than it said")
