"""In the child process: ZIP archives, of which DOCX and EPUB are made, within bounds."""

from __future__ import annotations

import io
import zipfile

from edgechat.base.process.file_decoder import NotDecodable
from edgechat.base.text import mebibytes

_MOST_ENTRIES = 20_000
_MOST_BYTES = 512 * 2**20
"""Of all entries together, unpacked; pictures are among them."""
_MOST_RATIO, _FREE = 200, 8 * 2**20
"""How many times larger than packed an entry may be; those of few bytes may be more."""
MOST_PART = 128 * 2**20
"""Bytes of one entry that is read."""


def opened(data: bytes, what: str) -> zipfile.ZipFile:
    """Return an archive of which nothing unpacks to much more. Raises NotDecodable.

    No more is ever unpacked of an entry than its header says, so those that lie are damaged.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise NotDecodable(f"is not {what}, or is damaged", "Save or download it again.") from error
    entries = archive.infolist()
    if len(entries) > _MOST_ENTRIES or sum(entry.file_size for entry in entries) > _MOST_BYTES:
        raise NotDecodable(
            f"unpacks to more than {mebibytes(_MOST_BYTES)} or {_MOST_ENTRIES} files",
            "Split it into several files, or leave its pictures out.",
        )
    for entry in entries:
        if entry.file_size > _FREE and entry.file_size > _MOST_RATIO * max(1, entry.compress_size):
            raise NotDecodable("unpacks to far more than it is: a ZIP bomb", "Do not open it.")
        if entry.flag_bits & 1:
            raise NotDecodable("is encrypted", "Save it without a password.")
    return archive


def part(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of an entry, at most MOST_PART. Raises KeyError, BadZipFile."""
    with archive.open(name) as entry:
        return entry.read(MOST_PART)
