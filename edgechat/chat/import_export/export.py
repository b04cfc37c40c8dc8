"""A conversation as Markdown for people, and as JSON to be imported again (see `importing`).

JSON has the files of its images in it, Markdown at most links to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import msgspec

from edgechat.base.errors import ImageError
from edgechat.base.images.image import Decoder
from edgechat.base.text import escaped_json, flat, one_line, printable
from edgechat.chat.attachments.documents import cited, passages_in
from edgechat.chat.conversation import Conversation
from edgechat.chat.import_export.format import ExportedChat, ExportedFile, ExportedImage, ExportedTurn
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
    """Return the line that is shown as Markdown, without control characters.

    links: the paths of images, by their digests; of those that have none, there is only a line.
    """
    return printable("\n\n".join(_paragraphs(conversation, links))) + "\n"


def to_json(conversation: Conversation) -> str:
    """Return a whole conversation, without its id, as JSON of an `ExportedFile`. Reads its images."""
    chat = msgspec.convert(conversation.chat, ExportedChat, from_attributes=True)
    # What is of this machine only.
    settings = msgspec.structs.replace(chat.settings, tools=(), documents=(), adapters=None)
    file = ExportedFile(
        chat=msgspec.structs.replace(chat, settings=settings),
        turns=tuple(_exported(turn, conversation) for turn in conversation.all_turns),
        leaf=conversation.turns[-1].id if conversation.turns else None,
    )
    return escaped_json(msgspec.json.format(msgspec.json.encode(file), indent=1).decode()) + "\n"


def data_of(conversation: Conversation, image: AttachedImage) -> bytes | None:
    """Return the file of an image; None if it is missing. Reads it from the disk."""
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
    """Return a passage with the name of its document alone: where that is concerns nobody else."""
    if file.source is None:
        return file
    source = msgspec.structs.replace(file.source, path=Path(file.source.path).name)
    return msgspec.structs.replace(file, source=source)


def counted(messages: int) -> str:
    """Return a number of messages as text."""
    return "1 message" if messages == 1 else f"{messages} messages"


def _paragraphs(conversation: Conversation, links: Mapping[str, str]) -> Iterator[str]:
    chat = conversation.chat
    yield f"# {flat(chat.title)}"
    about = [chat.id, f"started on {chat.date}", counted(conversation.n_messages)]
    # Several models may have answered; only the last one is known.
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
    what = f"Call of {name_of(use)}, {OUTCOMES[use.outcome]}"
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
