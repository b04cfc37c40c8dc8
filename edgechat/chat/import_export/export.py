"""Export: conversations as files, in Markdown for reading or in JSON for importing again.

The files are readable only by the user, and existing files are overwritten only on request. JSON contains the
images; Markdown can link to them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import msgspec

from edgechat.base import paths
from edgechat.base.errors import ImageError, NotAChat, NotWritten
from edgechat.base.images.image import Decoder
from edgechat.base.text import escaped_json, flat, one_line, printable
from edgechat.chat.attachments import cited, passages_in
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.importing import (
    MOST_BYTES,
    ExportedChat,
    ExportedFile,
    ExportedImage,
    ExportedTurn,
)
from edgechat.chat.messages import fenced
from edgechat.chat.records import AttachedImage, Attachment, ToolUse, Turn
from edgechat.chat.reply.calls import OUTCOMES, name_of
from edgechat.tools.tool import shown_arguments

_ENDINGS = {
    "stopped": "(stopped here)",
    "interrupted": "(interrupted here)",
    "failed": "(no reply)",
    "streaming": "(still being generated)",
}


def to_markdown(conversation: Conversation, links: Mapping[str, str] = MappingProxyType({})) -> str:
    """Convert the branch on screen to Markdown without control characters.

    links: image paths, keyed by digest; an image without a path is replaced by a line of text.
    """
    return printable("\n\n".join(_paragraphs(conversation, links))) + "\n"


def to_json(conversation: Conversation) -> str:
    """Return a whole conversation, without its id, as the JSON of an `ExportedFile`. Reads its images."""
    chat = msgspec.convert(conversation.chat, ExportedChat, from_attributes=True)
    # Leave out what exists only on this machine.
    settings = msgspec.structs.replace(chat.settings, tools=(), documents=(), adapters=None)
    file = ExportedFile(
        chat=msgspec.structs.replace(chat, settings=settings),
        turns=tuple(_exported(turn, conversation) for turn in conversation.all_turns),
        leaf=conversation.turns[-1].id if conversation.turns else None,
    )
    return escaped_json(msgspec.json.format(msgspec.json.encode(file), indent=1).decode()) + "\n"


def data_of(conversation: Conversation, image: AttachedImage) -> bytes | None:
    """Return the contents of an image file, or None if the file is missing. Accesses the disk."""
    found = conversation.images.get(image.digest)
    with suppress(ImageError):
        return Decoder.read_file(Path(found.path)) if found is not None else None
    return None


def _exported(turn: Turn, conversation: Conversation) -> ExportedTurn:
    values = {name: getattr(turn, name) for name in ExportedTurn.__struct_fields__}
    values["images"] = tuple(
        ExportedImage(
            name=image.name, width=image.width, height=image.height, data=data_of(conversation, image)
        )
        for image in turn.all_images
    )
    values["attachments"] = tuple(map(_without_path, turn.attachments))
    return ExportedTurn(**values)


def _without_path(file: Attachment) -> Attachment:
    """Reduce the path of a passage's document to its file name, since the location is private."""
    if file.source is None:
        return file
    source = msgspec.structs.replace(file.source, path=Path(file.source.path).name)
    return msgspec.structs.replace(file, source=source)


def counted(messages: int) -> str:
    """Return '1 message', '2 messages' and so on."""
    return "1 message" if messages == 1 else f"{messages} messages"


def _paragraphs(conversation: Conversation, links: Mapping[str, str]) -> Iterator[str]:
    chat = conversation.chat
    yield f"# {flat(chat.title)}"
    about = [chat.id, f"started on {chat.date}", counted(conversation.n_messages)]
    # Several models may have answered, but only the last one is known.
    yield " · ".join([*about, f"last model: {flat(chat.model_name)}"] if chat.model else about)
    speakers = {"system": "System prompt", "user": "You", "assistant": "Answer"}
    passages: dict[int, Attachment] = {}
    for turn in conversation.turns:
        yield f"## {speakers[turn.role]}"
        yield from (_image(image, links) for image in turn.images)
        yield from map(fenced, turn.attachments)
        for part in turn.rounds:
            yield from filter(None, [part.content.strip("\n")])
            for use in part.uses:
                yield _call(use)
                yield from (_image(image, links) for image in use.images)
        if turn.content:
            yield turn.content.strip("\n")
        passages |= passages_in([turn])
        if turn.role == "assistant" and (sources := cited(turn.content, passages.values())):
            yield "\n".join(["Sources:", "", *(f"- {flat(one.name)}" for one in sources)])
        if turn.state in _ENDINGS:
            yield _ENDINGS[turn.state]


def _call(use: ToolUse) -> str:
    what = f"Call to {name_of(use)}, {OUTCOMES[use.outcome]}"
    return "\n\n".join([what, *map(fenced, _texts(use))])


def _texts(use: ToolUse) -> Iterator[Attachment]:
    yield Attachment("Arguments", shown_arguments(use.arguments))
    if use.result:
        yield Attachment("Result", use.result)


def _image(image: AttachedImage, links: Mapping[str, str]) -> str:
    name = re.sub(r"[][\\]", "", one_line(image.name, 100))
    if image.digest in links:
        return f"![{name}]({links[image.digest]})"
    return f"(Image: {name}, {image.size})"


_NAME = 60
_ERRORS = (OSError, RuntimeError, ValueError)
"""Errors raised by file access: RuntimeError for an unknown ~user, ValueError for a NUL character."""


def write(path: Path, text: str, *, force: bool = False) -> None:
    """Write text to a new file, or with `force` to an existing one. Raises NotWritten."""
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
    """Return the path to write to; if the user's `name` is a folder, the file in it is named after the title.

    ~ is the home folder; '' is the current folder. Raises NotWritten.
    """
    try:
        path = Path(name).expanduser()
        return free_name(title, ending, path) if path.is_dir() else path
    except _ERRORS as error:
        raise _not_written(name, error) from error


def read(name: str | Path) -> bytes:
    """Return the contents of a file, up to the limit of `parse_chat`. Expands ~. Raises NotAChat."""
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
    """Write a conversation to a file. Markdown links to images in a folder next to it; JSON contains them.

    force: overwrite an existing file. Raises NotWritten.
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
    """Return a safe file name for an image, made unique by its digest: 'photo-3f2a9c41.png'."""
    stem, suffix = os.path.splitext(image.name)
    words = re.sub(r"[^\w]+", "-", stem).strip("-_")[:_NAME] or "image"
    return f"{words}-{image.digest[:8]}{re.sub(r'[^.a-z0-9]', '', suffix.lower())[:6]}"


def free_name(title: str, ending: str, folder: Path) -> Path:
    """Return an unused path named after a title: 'what-is-a-quant-2.md'."""
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
