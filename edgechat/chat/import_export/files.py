"""Files of conversations: readable by the user only, and replaced only on request."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from edgechat.base import paths
from edgechat.base.errors import NotAChat, NotWritten
from edgechat.base.text import one_line
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.export import data_of, to_json, to_markdown
from edgechat.chat.import_export.importing import MOST_BYTES
from edgechat.chat.records import AttachedImage

_NAME = 60
_ERRORS = (OSError, RuntimeError, ValueError)
"""What a file name can raise: RuntimeError for an unknown ~user, ValueError for a NUL."""


def write(path: Path, text: str, *, force: bool = False) -> None:
    """Write a text to a new file. Raises NotWritten, also if the file exists, unless `force`."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", newline="\n") as file:
            path.chmod(0o600)
            file.write(text)
    except FileExistsError as error:
        raise NotWritten(f"The file {_shown(path)} already exists.", hint="Choose another name.") from error
    except _ERRORS as error:
        raise _not_written(path, error) from error


def target(name: str, title: str, ending: str = ".md") -> Path:
    """Return the path that a name stands for; in a folder, a new file named after the title.

    ~ is the home, an empty name the current folder. Raises NotWritten.
    """
    try:
        path = Path(name).expanduser()
        return free_name(title, ending, path) if path.is_dir() else path
    except _ERRORS as error:
        raise _not_written(name, error) from error


def read(name: str | Path) -> bytes:
    """Return the contents of a file (~ is the home), up to the limit of `parse_chat`. Raises NotAChat."""
    try:
        with Path(name).expanduser().open("rb") as source:
            return source.read(MOST_BYTES + 1)
    except _ERRORS as error:
        raise NotAChat(
            f"{_shown(name)} cannot be read: {_why(error)}.",
            hint="To create such a file: edgechat chats export ID --json FILE",
        ) from error


def export_to_file(conversation: Conversation, name: str) -> Path:
    """Write a conversation to a file, as JSON if its name ends in .json, else as Markdown; return its path.

    name: see `target`. Raises NotWritten.
    """
    path = target(name, conversation.chat.title)
    write_chat(conversation, path, as_json=path.suffix.lower() == ".json")
    return path.absolute()


def write_chat(conversation: Conversation, path: Path, *, as_json: bool, force: bool = False) -> None:
    """Write a conversation to a file, which links to its images in a folder beside it, or (JSON) has them.

    Raises NotWritten, also if the file exists, unless `force`.
    """
    if as_json:
        write(path, to_json(conversation), force=force)
        return
    images = {image.digest: image for turn in conversation.turns for image in turn.all_images}
    folder = path.with_name(f"{path.stem}-images")
    names = {digest: _file_name(image) for digest, image in images.items()}
    found = {digest: data for digest in images if (data := data_of(conversation, images[digest])) is not None}
    links = {digest: quote(f"{folder.name}/{names[digest]}") for digest in found}
    write(path, to_markdown(conversation, links), force=force)
    try:
        if found:
            folder.mkdir(mode=0o700, exist_ok=True)
        for digest, data in found.items():
            paths.replace(folder / names[digest], data)
    except OSError as error:
        raise _not_written(folder, error) from error


def _file_name(image: AttachedImage) -> str:
    """Return a name that is safe, and no other image's: 'photo-3f2a9c41.png'."""
    stem, suffix = os.path.splitext(image.name)
    words = re.sub(r"[^\w]+", "-", stem).strip("-_")[:_NAME] or "image"
    return f"{words}-{image.digest[:8]}{re.sub(r'[^.a-z0-9]', '', suffix.lower())[:6]}"


def free_name(title: str, ending: str, folder: Path) -> Path:
    """Return the path of a new file that is named after a title: 'what-is-a-quant-2.md'."""
    words = re.sub(r"[^\w]+", "-", title.lower()).strip("-_")[:_NAME].rstrip("-_") or "conversation"
    number = 1
    while (path := folder / (f"{words}-{number}{ending}" if number > 1 else f"{words}{ending}")).exists():
        number += 1
    return path


def _not_written(name: str | Path, error: Exception) -> NotWritten:
    hint = "Choose a file in a writable folder."
    return NotWritten(f"{_shown(name)} cannot be written: {_why(error)}.", hint=hint)


def _shown(name: str | Path) -> str:
    return one_line(str(name), 200)


def _why(error: Exception) -> str:
    return one_line(getattr(error, "strerror", None) or str(error)).rstrip(".")
