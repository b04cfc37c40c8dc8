"""Attachments of a question: files and folders it names, long pastes, images, and passages of documents."""

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


_SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".heic", ".heif"))


def is_image(path: str) -> bool:
    """Return whether a file is an image by its name."""
    return Path(path).suffix.lower() in _SUFFIXES


def read_image(library: ImageLibrary, path: str) -> AttachedImage:
    """Copy the image of a file into the library. Blocks. Raises ImageError, also if it cannot be decoded."""
    try:
        file = Path(path).expanduser()
    except RuntimeError as error:  # no such user's home
        raise ImageError(f"{one_line(path, 120)} cannot be read: {error}") from error
    return _attached(file.name, library.add_file(file))


def keep_image(library: ImageLibrary, data: bytes, name: str) -> AttachedImage:
    """Put an image into the library. Blocks. Raises ImageError."""
    return _attached(name, library.add(data, name=name))


def _attached(name: str, image: Image) -> AttachedImage:
    from edgechat.chat.records import AttachedImage  # not needed for the first frame

    return AttachedImage(name, image.digest, image.width, image.height)


_MENTION = re.compile(r"(?:^|(?<=\s))@(?:\"([^\"\n]+)\"|(\S+))")
_CODE = re.compile(r"^(```+|~~~+).*?^\1", re.DOTALL | re.MULTILINE)
"""A fenced block, in which an @ begins a decorator."""
_PATH_LIKE = re.compile(r"[^()<>{}=;'\"`]*(?:/[^()<>{}=;'\"`]*|\w\.\w{1,5})")
_AFTER_WORD = ".,;:!?)"


class Mention(NamedTuple):
    """A path that a text names after an @."""

    path: str
    kind: Literal["file", "image", "folder", "missing"]


def mentions_in(text: str) -> Iterator[Mention]:
    """Yield what a text names, each path once, also what only looks like a path. Blocks on the disk."""
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
    """Return the texts of the files and folders that a text names, without images. Blocks on the disk.

    attached: names of existing attachments, whose files may be gone. Raises AttachmentError if there are more
    than `most`, or one cannot be read: a question that is sent without it has a hole, which the model fills
    with inventions.
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


def images_named_in(text: str) -> list[str]:
    """Return the paths of the images that a text names. Blocks on the disk."""
    return [path for path, kind in mentions_in(text) if kind == "image"]


def folders_named_in(text: str) -> list[str]:
    """Return the paths of the folders that a text names. Blocks on the disk."""
    return [path for path, kind in mentions_in(text) if kind == "folder"]


def bytes_named_in(text: str) -> int:
    """Return the size of the text files that a text names. Blocks on the disk."""
    sizes = (Path(path).expanduser().stat().st_size for path, kind in mentions_in(text) if kind == "file")
    return sum(min(MOST_BYTES, size) for size in sizes)


def without_mention(text: str, path: str) -> str:
    """Return a text in which a path is only a word, without its @ and quotation marks."""
    code = [match.span() for match in _CODE.finditer(text)]

    def plain(match: re.Match[str]) -> str:
        quoted, word = match.groups()
        is_code = any(start <= match.start() < end for start, end in code)
        is_it = path in (quoted, word, (word or "").rstrip(_AFTER_WORD))
        return match[0] if is_code or not is_it else quoted or word

    return _MENTION.sub(plain, text)


def path_exists(path: str, *, or_folder: bool = False) -> bool:
    """Return whether a path is that of a file, or of a folder where that is allowed."""
    try:
        file = Path(path).expanduser()
        return bool(path) and (file.is_file() or (or_folder and file.is_dir()))
    except (OSError, RuntimeError, ValueError):
        return False


_LONG_LINES, _LONG_TEXT = 15, 2000
_PATH_LENGTH = 4096
_PATH = re.compile(r"""file://|['"]?(/|~|[A-Za-z]:[\\/]|\\\\)""")
"""How one begins, on Windows too, perhaps in quotes."""


def is_long(text: str) -> bool:
    """Return whether a paste is long enough to become an attachment."""
    return text.count("\n") >= _LONG_LINES or len(text) > _LONG_TEXT


def may_be_path(text: str) -> bool:
    """Return whether a paste may be a file that was dropped on the terminal."""
    line = text.strip()
    return bool(_PATH.match(line)) and "\n" not in line and len(line) <= _PATH_LENGTH


def dropped(text: str) -> list[str]:
    """Return the paths in a paste that consists of paths of files only. Looks at the disk."""
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
    return [word.strip("'\"") for word in shlex.split(line, posix=False)]  # a backslash escapes nothing


def _path_of(word: str) -> str:
    if not word.startswith("file://"):
        return word
    from urllib.parse import unquote, urlparse

    return unquote(urlparse(word).path)


BYTES_PER_TOKEN = 3.0
"""Of documents; less than most texts have, so that they fit."""
_ANSWER_TOKENS = 1024
_PASSAGES_SECONDS, _WHOLE_SECONDS = 15.0, 60.0
"""Reading may take so long, as far as the speed is predicted; whole documents are read once."""
_MOST_TOKENS = 6000
"""Of passages: more of them confuse rather than help."""


def attached_passage(given: Given) -> Attachment:
    """Return a passage as an attachment."""
    from edgechat.chat.records import Attachment

    return Attachment(f"[{given.source.number}] {given.name}", given.text, given.source)


def passages_in(turns: Iterable[Turn]) -> dict[int, Attachment]:
    """Return all passages in some turns, by the numbers by which replies cite them."""
    files = (file for turn in turns for file in turn.attachments)
    return {file.source.number: file for file in files if file.source is not None}


def without_passages(files: Iterable[Attachment]) -> list[Attachment]:
    """Return those attachments that the user has chosen."""
    return [file for file in files if file.source is None]


def cited(text: str, passages: Iterable[Attachment]) -> list[Attachment]:
    """Return those of some passages that an answer cites, in the order of the passages."""
    from edgechat.documents.citations import citations_in

    passages = [one for one in passages if one.source is not None]
    numbers = {one.source.number for one in passages if one.source is not None}
    named = {number for citation in citations_in(text, numbers) for number in citation.numbers}
    return [one for one in passages if one.source is not None and one.source.number in named]


def sources_in(turns: Sequence[Turn]) -> list[PassageSource]:
    """Return the places of all passages in some turns."""
    return [source for turn in turns for file in turn.attachments if (source := file.source) is not None]


def room_for(plan: LoadPlan, context: int, turns: Sequence[Turn], question: str, answer: int | None) -> Room:
    """Return how much of the documents can be given with a question.

    context: cells. turns: those before the question. answer: the most tokens of the answer; None: any number.
    """
    usages = [turn.figures.usage for turn in turns if turn.figures is not None and turn.figures.usage]
    used = usages[-1].prompt_tokens + usages[-1].completion_tokens if usages else context // 32
    return room_beside(plan, context, used + int(len(question.encode()) / BYTES_PER_TOKEN), answer)


def room_beside(plan: LoadPlan, context: int, used: int, answer: int | None) -> Room:
    """Return how much of the documents can be given beside so many tokens of a chat; see `room_for`."""
    from edgechat.documents.library import Room  # it brings SQLite

    wanted = min(answer or _ANSWER_TOKENS, context // 4)
    free = max(0, context - used - wanted - 100)
    tps = plan.predicted.prompt_tps if plan.predicted is not None else 0.0
    passages, whole = free // 2, 2 * free // 3
    if tps:
        passages, whole = min(passages, int(tps * _PASSAGES_SECONDS)), min(whole, int(tps * _WHOLE_SECONDS))
    passages = min(free, _MOST_TOKENS, max(passages, 400))  # so many even where that is slow
    return Room(passages=int(passages * BYTES_PER_TOKEN), whole=int(whole * BYTES_PER_TOKEN))


FindImage = Callable[[str], "Image | None"]
"""Returns the image of a digest; None for one that is missing, or that the model cannot see."""


class ChatImages:
    """Finds and keeps images in a library, which is opened at first use."""

    def __init__(self, library: Callable[[], ImageLibrary]) -> None:
        self._library = library

    async def find(self, turns: Sequence[Turn], model: ModelInfo | None) -> FindImage:
        """Return what finds the images of turns; nothing for a model that does not see."""
        digests = {image.digest for turn in turns for image in turn.all_images}
        if not digests or model is None or not model.sees:
            return lambda _digest: None
        library = self._library()
        found = await asyncio.to_thread(lambda: {digest: library.get(digest) for digest in digests})
        return found.get

    async def keep(self, files: Sequence[bytes]) -> tuple[AttachedImage, ...]:
        """Store the images of a result; those that cannot be decoded are left out."""

        def keep() -> Iterator[AttachedImage]:
            for number, data in enumerate(files, 1):
                try:
                    yield keep_image(self._library(), data, f"image {number}")
                except ImageError:
                    continue

        return await asyncio.to_thread(lambda: tuple(keep()))
