"""Attachments to a question: files and folders it mentions, long pastes, images, and document passages."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from edgechat.base.errors import AttachmentError, ImageError
from edgechat.base.text import flat, is_binary, one_line

if TYPE_CHECKING:  # not needed for the first frame
    from edgechat.base.images.image import Image, ImageLibrary
    from edgechat.chat.records import AttachedImage, Attachment, Turn
    from edgechat.documents.citations import PassageSource
    from edgechat.documents.library import Given, Room
    from edgechat.engine.types import ModelInfo
    from edgechat.planner.plan import LoadPlan

MOST = 20
"""Maximum number of attachments to a question."""
MOST_BYTES = 4 * 2**20
"""Maximum size of a file."""
_MOST_LISTED = 400
"""Maximum number of entries in a folder listing (about 5,000 tokens)."""
_LISTING_SECONDS = 2.0


def read(path: str) -> Attachment:
    """Return a text file or a folder listing as an attachment. Blocks.

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
            f"{shown} is larger than {limit}, the limit.", hint="Send only the relevant part."
        )
    if is_binary(data):
        raise AttachmentError(f"{shown} is not a text file.", hint="Only text files can be attached.")
    return of_text(file.name, data.decode("utf-8-sig", "replace"))


def of_text(name: str, text: str) -> Attachment:
    """Return text as an attachment."""
    from edgechat.chat.records import Attachment  # not needed for the first frame

    return Attachment(name, text)


def _listing(folder: Path) -> str:
    """List a folder's contents recursively, with file sizes. Raises OSError."""
    from edgechat.base.folders import told_size, walk  # not needed for the first frame

    contents = walk(folder, most=_MOST_LISTED, seconds=_LISTING_SECONDS)
    lines = ["The names and sizes of what is in this folder, without hidden and git-ignored files:"]
    for path in sorted(contents.paths):
        size = "" if path.endswith("/") else told_size(folder / path)
        lines.append(flat(path) + size)
    if not contents.is_complete:
        lines.append(f"The list is not complete: it ends after {len(contents.paths):,} entries.")
    return "\n".join(lines if len(lines) > 1 else [*lines, "nothing"]) + "\n"


_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".heic", ".heif"))


def is_image(path: str) -> bool:
    """Return whether a path names an image, judging by its suffix."""
    return Path(path).suffix.lower() in _SUFFIXES


def read_image(library: ImageLibrary, path: str) -> AttachedImage:
    """Copy an image file into the library. Blocks. Raises ImageError, for example if it cannot be decoded."""
    try:
        file = Path(path).expanduser()
    except RuntimeError as error:  # ~user does not exist
        raise ImageError(f"{one_line(path, 120)} cannot be read: {error}") from error
    return _attached(file.name, library.add_file(file))


def keep_image(library: ImageLibrary, data: bytes, name: str) -> AttachedImage:
    """Add an image to the library. Blocks. Raises ImageError."""
    return _attached(name, library.add(data, name=name))


def _attached(name: str, image: Image) -> AttachedImage:
    from edgechat.chat.records import AttachedImage  # not needed for the first frame

    return AttachedImage(name, image.digest, image.width, image.height)


_MENTION = re.compile(r"(?:^|(?<=\s))@(?:\"([^\"\n]+)\"|(\S+))")
_CODE = re.compile(r"^(```+|~~~+).*?^\1", re.DOTALL | re.MULTILINE)
"""A fenced code block, in which an @ starts a decorator, not a mention."""
_PATH_LIKE = re.compile(r"[^()<>{}=;'\"`]*(?:/[^()<>{}=;'\"`]*|\w\.\w{1,5})")
_AFTER_WORD = ".,;:!?)"


class Mention(NamedTuple):
    """A path mentioned in text after an @."""

    path: str
    kind: Literal["file", "image", "folder", "missing"]


def mentions_in(text: str) -> Iterator[Mention]:
    """Yield the paths mentioned in `text`, without duplicates. Blocks.

    A word that looks like a path is yielded as missing if nothing exists there.
    """
    for quoted, word in dict.fromkeys(_MENTION.findall(_CODE.sub("", text))):
        candidates = [quoted] if quoted else [word, word.rstrip(_AFTER_WORD)]
        found = next((path for path in candidates if path_exists(path, or_folder=True)), None)
        if found is not None and not path_exists(found):
            yield Mention(found, "folder")
        elif found is not None:
            yield Mention(found, "image" if is_image(found) else "file")
        elif quoted or _PATH_LIKE.fullmatch(candidates[-1]):
            yield Mention(candidates[-1], "missing")


def named_in(text: str, most: int, attached: Collection[str] = ()) -> list[Attachment]:
    """Return the files and folders mentioned in `text`, except images, as attachments. Blocks.

    attached: names of files that are already attached, whose mentions are ignored if the files no longer
    exist. Raises AttachmentError if there are more than `most` mentions, or if one cannot be read: without
    the file, the model would invent its contents.
    """
    mentions = [
        one for one in mentions_in(text) if one.kind != "missing" or Path(one.path).name not in attached
    ]
    for path, kind in mentions:
        if kind == "missing":
            hint = "Tab completes a path after @. In backticks, it is sent as text."
            raise AttachmentError(f"No such file: {one_line(path, 120)}.", hint=hint)
    if len(mentions) > most:
        raise AttachmentError(f"A question can have at most {MOST} attachments.", hint="Name fewer files.")
    return [read(path) for path, kind in mentions if kind != "image"]


def paths_named_in(text: str, kind: Literal["image", "folder"]) -> list[str]:
    """Return the paths of the images or folders mentioned in `text`. Blocks."""
    return [one.path for one in mentions_in(text) if one.kind == kind]


def bytes_named_in(text: str) -> int:
    """Return the total size of the text files mentioned in `text`. Blocks."""
    sizes = (Path(path).expanduser().stat().st_size for path, kind in mentions_in(text) if kind == "file")
    return sum(min(MOST_BYTES, size) for size in sizes)


def without_mention(text: str, path: str) -> str:
    """Return `text` without the @ before `path` and without any quotation marks around it."""
    code = [match.span() for match in _CODE.finditer(text)]

    def plain(match: re.Match[str]) -> str:
        quoted, word = match.groups()
        is_code = any(start <= match.start() < end for start, end in code)
        is_it = path in (quoted, word, (word or "").rstrip(_AFTER_WORD))
        return match[0] if is_code or not is_it else quoted or word

    return _MENTION.sub(plain, text)


def path_exists(path: str, *, or_folder: bool = False) -> bool:
    """Return whether a path is an existing file or, with `or_folder`, an existing folder."""
    try:
        file = Path(path).expanduser()
        return bool(path) and (file.is_file() or (or_folder and file.is_dir()))
    except (OSError, RuntimeError, ValueError):
        return False


_LONG_LINES, _LONG_TEXT = 15, 2000
_PATH_LENGTH = 4096
_PATH = re.compile(r"""file://|['"]?(/|~|[A-Za-z]:[\\/]|\\\\)""")
"""Matches the start of a Unix or Windows path, or of a file URL; paths can be quoted."""


def is_long(text: str) -> bool:
    """Return whether a paste is long enough to become an attachment."""
    return text.count("\n") >= _LONG_LINES or len(text) > _LONG_TEXT


def may_be_path(text: str) -> bool:
    """Return whether a paste might be the path of a file dropped on the terminal."""
    line = text.strip()
    return bool(_PATH.match(line)) and "\n" not in line and len(line) <= _PATH_LENGTH


def dropped(text: str) -> list[str]:
    """Return the paths in a paste that consists only of file paths, otherwise []. Accesses the disk."""
    line = text.strip()
    if not may_be_path(line):
        return []
    try:
        words = [line] if path_exists(line) else _words(line)
    except ValueError:
        return []
    paths = [_path_of(word) for word in words[:MOST]]
    is_absolute = all(Path(path).is_absolute() or path.startswith("~") for path in paths)
    return paths if is_absolute and all(map(path_exists, paths)) else []


def _words(line: str) -> list[str]:
    if os.name != "nt":
        return shlex.split(line)
    return [word.strip("'\"") for word in shlex.split(line, posix=False)]  # backslashes are not escapes


def _path_of(word: str) -> str:
    if not word.startswith("file://"):
        return word
    from urllib.parse import unquote, urlparse

    return unquote(urlparse(word).path)


BYTES_PER_TOKEN = 3.0
"""A low estimate of the bytes per token in documents, to make sure that they fit."""
_ANSWER_TOKENS = 1024
_PASSAGES_SECONDS, _WHOLE_SECONDS = 15.0, 60.0
"""How long the model may take to read passages or whole documents, if its speed is predicted.

Whole documents get more time, because they are read only once.
"""
_MOST_TOKENS = 6000
"""Maximum total size of passages, in tokens; more would confuse the model instead of helping it."""


def attached_passage(given: Given) -> Attachment:
    """Return a passage as an attachment."""
    from edgechat.chat.records import Attachment

    return Attachment(f"[{given.source.number}] {given.name}", given.text, given.source)


def passages_in(turns: Iterable[Turn]) -> dict[int, Attachment]:
    """Return all passages attached to turns, keyed by the numbers used to cite them."""
    files = (file for turn in turns for file in turn.attachments)
    return {file.source.number: file for file in files if file.source is not None}


def without_passages(files: Iterable[Attachment]) -> list[Attachment]:
    """Return the attachments that the user chose, leaving out passages."""
    return [file for file in files if file.source is None]


def cited(text: str, passages: Iterable[Attachment]) -> list[Attachment]:
    """Return the passages that an answer cites, in their original order."""
    from edgechat.documents.citations import citations_in

    passages = [one for one in passages if one.source is not None]
    numbers = {one.source.number for one in passages if one.source is not None}
    named = {number for citation in citations_in(text, numbers) for number in citation.numbers}
    return [one for one in passages if one.source is not None and one.source.number in named]


def sources_in(turns: Sequence[Turn]) -> list[PassageSource]:
    """Return the sources of all passages attached to turns."""
    return [source for turn in turns for file in turn.attachments if (source := file.source) is not None]


def room_for(plan: LoadPlan, context: int, turns: Sequence[Turn], question: str, answer: int | None) -> Room:
    """Return how much document text fits alongside a question.

    context: cells in the KV cache. turns: the turns before the question. answer: the token limit for the
    answer, or None if it is unlimited.
    """
    usages = [turn.figures.usage for turn in turns if turn.figures is not None and turn.figures.usage]
    used = usages[-1].prompt_tokens + usages[-1].completion_tokens if usages else context // 32
    return room_beside(plan, context, used + int(len(question.encode()) / BYTES_PER_TOKEN), answer)


def room_beside(plan: LoadPlan, context: int, used: int, answer: int | None) -> Room:
    """Return how much document text fits alongside `used` tokens of a chat; see `room_for`."""
    from edgechat.documents.library import Room  # imports SQLite

    wanted = min(answer or _ANSWER_TOKENS, context // 4)
    free = max(0, context - used - wanted - 100)
    tps = plan.predicted.prompt_tps if plan.predicted is not None else 0.0
    passages, whole = free // 2, 2 * free // 3
    if tps:
        passages, whole = min(passages, int(tps * _PASSAGES_SECONDS)), min(whole, int(tps * _WHOLE_SECONDS))
    passages = min(free, _MOST_TOKENS, max(passages, 400))  # at least 400, even if reading them is slow
    return Room(passages=int(passages * BYTES_PER_TOKEN), whole=int(whole * BYTES_PER_TOKEN))


FindImage = Callable[[str], "Image | None"]
"""A function that returns the image with a given digest, or None if it is missing or the model cannot see."""


class ChatImages:
    """Finds and stores images in a library, which is opened on first use."""

    def __init__(self, library: Callable[[], ImageLibrary]) -> None:
        self._library = library

    async def find(self, turns: Sequence[Turn], model: ModelInfo | None) -> FindImage:
        """Return a function that looks up images in turns; it finds none if the model cannot see images."""
        digests = {image.digest for turn in turns for image in turn.all_images}
        if not digests or model is None or not model.sees:
            return lambda _digest: None
        library = self._library()
        found = await asyncio.to_thread(lambda: {digest: library.get(digest) for digest in digests})
        return found.get

    async def keep(self, files: Sequence[bytes]) -> tuple[AttachedImage, ...]:
        """Store the images from a tool result and return them, skipping any that cannot be decoded."""

        def keep() -> Iterator[AttachedImage]:
            for number, data in enumerate(files, 1):
                try:
                    yield keep_image(self._library(), data, f"image {number}")
                except ImageError:
                    continue

        return await asyncio.to_thread(lambda: tuple(keep()))
