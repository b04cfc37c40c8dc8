"""The files and folders that a question names after an @."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgechat.base.errors import AttachmentError
from edgechat.base.text import one_line
from edgechat.chat.attachments.images import is_image
from edgechat.chat.attachments.reading import MOST, MOST_BYTES, read

if TYPE_CHECKING:
    from edgechat.chat.records import Attachment

_MENTION = re.compile(r"(?:^|(?<=\s))@(?:\"([^\"\n]+)\"|(\S+))")
_CODE = re.compile(r"^(```+|~~~+).*?^\1", re.DOTALL | re.MULTILINE)
"""A fenced block, in which an @ begins a decorator."""
_PATH_LIKE = re.compile(r"[^()<>{}=;'\"`]*(?:/[^()<>{}=;'\"`]*|\w\.\w{1,5})")
_AFTER_WORD = ".,;:!?)"


def named_in(text: str, most: int, attached: Collection[str] = ()) -> list[Attachment]:
    """Return the texts of the files and folders that a text names, images left out. Blocks on the disk.

    Raises AttachmentError if there are more than `most`, or one cannot be read: a question that is sent
    without it has a hole, which the model fills with inventions. attached: the names of what is attached
    already, whose files may be gone.
    """
    paths = [
        path for path in _paths_in(text) if path_exists(path, or_folder=True) or _name(path) not in attached
    ]
    for path in paths:
        if not path_exists(path, or_folder=True):
            hint = "Tab completes a path after @. In backticks, it is sent as text."
            raise AttachmentError(f"No such file: {one_line(path, 120)}.", hint=hint)
    if len(paths) > most:
        raise AttachmentError(f"A question can have at most {MOST} attachments.", hint="Name fewer files.")
    return [read(path) for path in paths if not is_image(path)]


def images_named_in(text: str) -> list[str]:
    """Return the paths of the images that a text names. Blocks on the disk."""
    return [path for path in _paths_in(text) if is_image(path) and path_exists(path)]


def folders_named_in(text: str) -> list[str]:
    """Return the paths of the folders that a text names. Blocks on the disk."""
    return [path for path in _paths_in(text) if path_exists(path, or_folder=True) and not path_exists(path)]


def without_mention(text: str, path: str) -> str:
    """Return a text in which a path is only a word, without its @ and quotation marks."""
    code = [match.span() for match in _CODE.finditer(text)]

    def plain(match: re.Match[str]) -> str:
        quoted, word = match.groups()
        is_code = any(start <= match.start() < end for start, end in code)
        is_it = path in (quoted, word, (word or "").rstrip(_AFTER_WORD))
        return match[0] if is_code or not is_it else quoted or word

    return _MENTION.sub(plain, text)


def bytes_named_in(text: str) -> int:
    """Return the size of the text files that a text names. Blocks on the disk."""
    total = 0
    for path in _paths_in(text):
        if path_exists(path) and not is_image(path):
            total += min(MOST_BYTES, Path(path).expanduser().stat().st_size)
    return total


def _paths_in(text: str) -> Iterator[str]:
    """Yield what is named, each once: what exists, and what looks like a path that does not."""
    for quoted, word in dict.fromkeys(_MENTION.findall(_CODE.sub("", text))):
        candidates = [quoted] if quoted else [word, word.rstrip(_AFTER_WORD)]
        found = next((path for path in candidates if path_exists(path, or_folder=True)), None)
        if found is not None:
            yield found
        elif quoted or _PATH_LIKE.fullmatch(candidates[-1]):
            yield candidates[-1]


def _name(path: str) -> str:
    return Path(path).name


def path_exists(path: str, *, or_folder: bool = False) -> bool:
    """Return whether a path is that of a file, or of a folder where that is allowed."""
    try:
        file = Path(path).expanduser()
        return bool(path) and (file.is_file() or (or_folder and file.is_dir()))
    except (OSError, RuntimeError, ValueError):
        return False
