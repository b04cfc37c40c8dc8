"""From a path to an attachment: the text of a file, or the list of what is in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import AttachmentError
from edgechat.base.text import flat, is_binary, one_line

if TYPE_CHECKING:
    from edgechat.chat.records import Attachment

MOST = 20
"""Maximum number of attachments of a question."""
MOST_BYTES = 4 * 2**20
"""Maximum size of a file."""
_MOST_LISTED = 400
"""Entries of a folder's list, some 5,000 tokens."""
_LISTING_SECONDS = 2.0


def read(path: str) -> Attachment:
    """Return a text file, or the list of a folder, as an attachment. Blocks on the disk.

    Raises AttachmentError.
    """
    shown = one_line(path, 120)
    try:
        file = Path(path).expanduser()
        if file.is_dir():
            return of_text(f"{file.resolve().name}/", _listing(file))
        if not file.is_file():
            raise AttachmentError(f"No such file: {shown}.", hint="Tab completes a path.")
        with file.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise AttachmentError(f"{shown} cannot be read: {why}.", hint="Choose another file.") from error
    if len(data) > MOST_BYTES:
        limit = f"{MOST_BYTES // 2**20} MiB"
        raise AttachmentError(
            f"{shown} has more than {limit}, the limit.", hint="Send only the relevant part."
        )
    if is_binary(data):
        raise AttachmentError(f"{shown} is not a text file.", hint="Only text files can be attached.")
    return of_text(file.name, data.decode("utf-8-sig", "replace"))


def of_text(name: str, text: str) -> Attachment:
    """Return a text as an attachment."""
    from edgechat.chat.records import Attachment  # not needed for the first frame

    return Attachment(name, text)


def _listing(folder: Path) -> str:
    """Return the names and sizes of what is in a folder and below it. Raises OSError."""
    from edgechat.base.folders import told_size, walk  # not needed for the first frame

    contents = walk(folder, most=_MOST_LISTED, seconds=_LISTING_SECONDS)
    lines = ["The names and sizes of what is in this folder, without hidden and git-ignored files:"]
    for path in sorted(contents.paths):
        size = "" if path.endswith("/") else told_size(folder / path)
        lines.append(flat(path) + size)
    if not contents.is_complete:
        lines.append(f"The list is not complete: it ends after {len(contents.paths):,} entries.")
    return "\n".join(lines if len(lines) > 1 else [*lines, "nothing"]) + "\n"
