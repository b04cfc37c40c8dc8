"""Imports conversations from files, in the JSON format of `export.to_json` or as OpenAI API messages.

Files are untrusted: size, depth and counts are bounded. Everything gets a new id, so importing a file twice
creates two conversations.
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Never

import msgspec

from edgechat.base.errors import ImageError, NotAChat
from edgechat.base.file_library import digest_of
from edgechat.base.images.image import Decoder, Image, ImageLibrary
from edgechat.base.text import one_line
from edgechat.chat.messages import title_of
from edgechat.chat.records import (
    AttachedImage,
    Attachment,
    Chat,
    ChatSettings,
    Figures,
    Role,
    ToolRound,
    ToolUse,
    Turn,
    TurnState,
)
from edgechat.chat.storage.rows import settings_of
from edgechat.chat.storage.store import TITLE_LENGTH, Store
from edgechat.documents.registry import locations
from edgechat.engine.types import ErrorInfo

FORMAT: Literal["edgechat"] = "edgechat"
VERSION = 1
"""Version of the format that `to_json` writes; adding fields does not change it."""
MOST_BYTES = 256 * 2**20
"""Maximum size of a file including its images, which base64 makes a third larger."""
MOST_TURNS = 100_000
_MOST_ATTACHMENTS = 100
_MOST_PASSAGES = 10_000
"""Maximum number of document passages in a question."""
_MOST_USES = 1000
"""Maximum number of tool calls in a reply."""
_LARGEST = 1 << 20
"""Maximum width or height of an image, in pixels, if only the imported file gives its size."""
_KNOWN = (
    'Supported are files written by `edgechat chats export --json`, and lists of {"role": …, "content": …}.'
)
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class ExportedChat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exported chat, without its turns."""

    title: str = ""
    model: str = ""
    date: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    pinned: bool = False
    settings: ChatSettings = ChatSettings()
    """No tools, documents or adapters: importing must not enable any, and their paths are private."""


class ExportedImage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exported image, from a question or from the tool results in a reply."""

    name: str
    width: int = 0
    height: int = 0
    data: bytes | None = None
    """The image file, as base64; None if it was missing."""


class ExportedTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exported turn."""

    id: str
    parent_id: str | None = None
    role: Role
    content: str
    thinking: str = ""
    state: TurnState = "complete"
    created_at: float = 0.0
    figures: Figures | None = None
    error: ErrorInfo | None = None
    attachments: tuple[Attachment, ...] = ()
    images: tuple[ExportedImage, ...] = ()
    rounds: tuple[ToolRound, ...] = ()


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """An exported conversation, with all its branches."""

    format: Literal["edgechat"] = FORMAT
    version: int = VERSION
    chat: ExportedChat
    turns: tuple[ExportedTurn, ...]
    """In the order they were written, so parents precede their children."""
    leaf: str | None = None
    """The last turn of the branch being shown."""


class ImportedChat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that is not stored yet; see `add_chat`."""

    chat: Chat
    turns: tuple[Turn, ...]
    files: dict[str, bytes] = {}
    """The images in the turns, keyed by digest."""


async def add_chat(store: Store, new: ImportedChat) -> None:
    """Store a conversation, along with any of its images that can be decoded. Raises StoreError.

    The other images are shown as missing. Passages link to their documents if this machine has them too.
    """
    turns = await asyncio.to_thread(_with_documents, new.turns)
    if new.files:
        added = await asyncio.to_thread(_add_images, store.images, new.files)
        turns = tuple(_with_images(turn, lambda image: _with_size(image, added)) for turn in turns)
    await store.add(new.chat, turns)


def _with_documents(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Set each passage's path to its document on this machine, or to a bare file name if it is not here."""
    here = cache(locations)

    def found(file: Attachment) -> Attachment:
        if file.source is None:
            return file
        path = here(file.source.collection).get(file.source.digest, Path(file.source.path).name)
        return msgspec.structs.replace(file, source=msgspec.structs.replace(file.source, path=path))

    return tuple(
        msgspec.structs.replace(turn, attachments=tuple(map(found, turn.attachments))) for turn in turns
    )


def _add_images(library: ImageLibrary, files: Mapping[str, bytes]) -> dict[str, Image]:
    added: dict[str, Image] = {}
    with Decoder() as decoder:
        for digest, data in files.items():
            with suppress(ImageError):
                added[digest] = library.add(data, decoder=decoder)
    return added


def _with_size(image: AttachedImage, added: Mapping[str, Image]) -> AttachedImage:
    """Return an image with its actual size instead of the one given in the file."""
    found = added.get(image.digest)
    if found is None:
        return image
    return msgspec.structs.replace(image, width=found.width, height=found.height)


def _with_images(turn: Turn, change: Callable[[AttachedImage], AttachedImage | None]) -> Turn:
    """Apply `change` to a turn's images, including images in results; drop an image if it returns None."""

    def changed(images: Sequence[AttachedImage]) -> tuple[AttachedImage, ...]:
        return tuple(new for image in images if (new := change(image)) is not None)

    rounds = tuple(
        msgspec.structs.replace(
            part,
            uses=tuple(msgspec.structs.replace(use, images=changed(use.images)) for use in part.uses),
        )
        for part in turn.rounds
    )
    return msgspec.structs.replace(turn, images=changed(turn.images), rounds=rounds)


def parse_chat(text: str | bytes) -> ImportedChat:
    """Parse the conversation in a file. Raises NotAChat, which explains what is wrong."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(raw) > MOST_BYTES:
        _refuse(f"it is {len(raw) // 2**20} MiB long, but the limit is {MOST_BYTES // 2**20}")
    try:
        content = msgspec.json.decode(raw.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse(f"it is not valid JSON ({one_line(str(error), 100)})")
    except RecursionError:
        _refuse("it is nested too deeply")
    table = content if isinstance(content, dict) else {"messages": content}
    if table.get("format") == FORMAT:
        return _from_export(table)
    if not isinstance(table.get("messages"), list):
        _refuse("it contains no conversation")
    model, title = (
        value if isinstance(value, str) else "" for value in (table.get("model"), table.get("title"))
    )
    return _from_messages(table["messages"], model, title)


def _from_export(table: dict[str, Any]) -> ImportedChat:
    if isinstance(table.get("version"), int) and table["version"] > VERSION:
        raise NotAChat(
            "This file was written by a newer edgechat.",
            hint="Update edgechat: pip install --upgrade edgechat",
        )
    # As in the store, invalid settings are ignored.
    chat_table = table.get("chat")
    settings = chat_table.pop("settings", None) if isinstance(chat_table, dict) else None
    try:
        file = msgspec.convert(table, ExportedFile)
    except msgspec.ValidationError as error:
        _refuse(one_line(str(error)).replace("Expected", "expected", 1))
    except RecursionError:
        _refuse("it is nested too deeply")
    _check(file.turns)
    chat = _new_chat(file.chat.title, file.chat.model, file.turns)
    ids = {turn.id: uuid.uuid4().hex for turn in file.turns}
    chat = msgspec.structs.replace(
        chat,
        date=file.chat.date if _is_date(file.chat.date) else chat.date,
        created_at=_past(file.chat.created_at),
        updated_at=_past(file.chat.updated_at),
        pinned=file.chat.pinned,
        # A conversation from elsewhere must not use this machine's tools, documents or adapters.
        settings=msgspec.structs.replace(
            settings_of(msgspec.json.encode(settings).decode()), tools=(), documents=(), adapters=None
        ),
        leaf=ids.get(file.leaf or ""),
    )
    return _imported(chat, file.turns, ids)


def _imported(chat: Chat, turns: Sequence[ExportedTurn], ids: dict[str, str]) -> ImportedChat:
    data = [image.data for turn in turns for image in turn.images if image.data is not None]
    return ImportedChat(
        chat=chat,
        turns=tuple(_turn(turn, chat.id, ids) for turn in turns),
        files={digest_of(one): one for one in data},
    )


def _check(turns: Sequence[ExportedTurn]) -> None:
    """Reject turns that do not form a tree or that exceed the limits."""
    if not turns:
        _refuse("it contains no turns")
    if len(turns) > MOST_TURNS:
        _refuse(f"it has {len(turns)} turns, but the limit is {MOST_TURNS}")
    known: set[str] = set()
    for number, turn in enumerate(turns, 1):
        if turn.id in known:
            _refuse(f"turn {number} has the same id as an earlier one")
        if turn.parent_id is not None and turn.parent_id not in known:
            _refuse(f"turn {number} answers a turn that does not precede it")
        if turn.role == "system" and number > 1:
            _refuse(f"turn {number} is a system prompt, which must be the first turn")
        n_chosen = sum(file.source is None for file in turn.attachments) + len(turn.images)
        if n_chosen > _MOST_ATTACHMENTS or len(turn.attachments) > _MOST_PASSAGES:
            _refuse(f"turn {number} has more than {_MOST_ATTACHMENTS} attachments")
        if turn.rounds and turn.role != "assistant":
            _refuse(f"turn {number} has tool calls, but is not a reply")
        if _n_calls(turn.rounds) > _MOST_USES:
            _refuse(f"turn {number} has more than {_MOST_USES} calls")
        known.add(turn.id)


def _n_calls(rounds: Iterable[ToolRound]) -> int:
    """Return the number of calls, plus one for each round."""
    return sum(1 + len(part.uses) for part in rounds)


def _turn(turn: ExportedTurn, chat_id: str, ids: dict[str, str]) -> Turn:
    values = {name: getattr(turn, name) for name in ExportedTurn.__struct_fields__}
    values |= {
        "id": ids[turn.id],
        "parent_id": ids[turn.parent_id] if turn.parent_id is not None else None,
        # No program is writing it anymore.
        "state": "interrupted" if turn.state == "streaming" else turn.state,
        "created_at": _past(turn.created_at),
        "images": tuple(map(_image, turn.images)),
    }
    new = Turn(chat_id=chat_id, **values)
    if turn.role != "assistant":
        return new
    # In the file, a reply's `images` are the images in its tool results, with their data.
    given = {image.digest: image for image in new.images if image.digest}
    return _with_images(msgspec.structs.replace(new, images=()), lambda image: given.get(image.digest))


def _image(image: ExportedImage) -> AttachedImage:
    digest = digest_of(image.data) if image.data is not None else ""
    width, height = (max(0, min(side, _LARGEST)) for side in (image.width, image.height))
    return AttachedImage(one_line(image.name), digest, width, height)


def _from_messages(messages: list[Any], model: str, title: str) -> ImportedChat:
    if len(messages) > MOST_TURNS:
        _refuse(f"it has {len(messages)} messages, but the limit is {MOST_TURNS}")
    turns: list[ExportedTurn] = []
    system: list[str] = []
    for are_results, group in groupby(enumerate(messages, 1), lambda numbered: _is_result(numbered[1])):
        if are_results:
            _add_results(turns, group)
            continue
        for number, message in group:
            role, content, images = _message(number, message)
            if role == "system":
                if turns and turns[-1].role != "system":
                    _refuse(f"message {number} is a system prompt, which must be the first message")
                system.append(content)
                if turns:
                    continue
            is_more = role == "assistant" and bool(turns and turns[-1].rounds) and not turns[-1].content
            turn = turns.pop() if is_more else _next_turn(turns, role, images)
            if role == "assistant" and (uses := _uses(number, message)):
                rounds = (*turn.rounds, ToolRound(uses=uses, content=content))
                if _n_calls(rounds) > _MOST_USES:
                    _refuse(f"up to message {number}, a reply has more than {_MOST_USES} calls")
                turns.append(msgspec.structs.replace(turn, rounds=rounds))
            else:
                turns.append(msgspec.structs.replace(turn, content=content))
    if system:
        turns[0] = msgspec.structs.replace(turns[0], content="\n\n".join(system))
    if not any(turn.role != "system" for turn in turns):
        _refuse("it contains no text")
    _check(turns)
    return _imported(_new_chat(title, model, turns), turns, {turn.id: turn.id for turn in turns})


def _next_turn(turns: Sequence[ExportedTurn], role: Role, images: tuple[ExportedImage, ...]) -> ExportedTurn:
    parent_id = turns[-1].id if turns else None
    return ExportedTurn(id=uuid.uuid4().hex, parent_id=parent_id, role=role, content="", images=images)


def _uses(number: int, message: dict[str, Any]) -> tuple[ToolUse, ...]:
    """Return the tool calls in an assistant message, without their results."""
    calls = message.get("tool_calls") or []
    uses: list[ToolUse] = []
    for call in calls if isinstance(calls, list) else [None]:
        call = call if isinstance(call, dict) else {}
        function = call.get("function")
        if not (isinstance(function, dict) and isinstance(name := function.get("name"), str)):
            _refuse(f"message {number} has a call that names no function")
        arguments = function.get("arguments", "")
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        call_id = call.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        uses.append(ToolUse(id=call_id or uuid.uuid4().hex, name=name, arguments=arguments))
    return tuple(uses)


def _is_result(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "tool"


def _add_results(turns: list[ExportedTurn], messages: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """Attach the results in tool messages to their calls.

    A result that does not name a call is attached to the first unanswered one.
    """
    part = turns[-1].rounds[-1] if turns and turns[-1].rounds and not turns[-1].content else None
    uses = list(part.uses) if part is not None else []
    waiting = [at for at, use in enumerate(uses) if use.outcome == "open"]
    for number, message in messages:
        wanted = message.get("tool_call_id")
        at = next((at for at in waiting if wanted in (None, uses[at].id)), None)
        content = message.get("content")
        if isinstance(content, list) and all(map(_is_text, content)):
            content = "\n\n".join(text["text"] for text in content)
        if at is None or not isinstance(content, str):
            _refuse(f"message {number} is not text that answers a call in the previous message")
        waiting.remove(at)
        uses[at] = msgspec.structs.replace(uses[at], outcome="answered", result=content)
    assert part is not None
    rounds = (*turns[-1].rounds[:-1], msgspec.structs.replace(part, uses=tuple(uses)))
    turns[-1] = msgspec.structs.replace(turns[-1], rounds=rounds)


def _message(number: int, message: Any) -> tuple[Role, str, tuple[ExportedImage, ...]]:
    if not isinstance(message, dict):
        _refuse(f"message {number} is not an object with a role and content")
    name = message.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        _refuse(
            f"message {number} has the role {one_line(repr(name), 40)}: not system, user, assistant or tool"
        )
    content = message.get("content")
    images: list[ExportedImage] = []
    if isinstance(content, list):
        texts = [part["text"] for part in content if _is_text(part)]
        data = [_data_in(part["image_url"]["url"]) for part in content if role == "user" and _is_image(part)]
        if len(texts) + len(data) < len(content):
            _refuse(f"message {number} has parts that are neither text nor a user's image")
        if None in data:
            _refuse(f"message {number} has an image that is not in the file")
        content = "\n\n".join(texts)
        images = [ExportedImage(name=f"image {at}", data=one) for at, one in enumerate(data, 1)]
        if len(images) > _MOST_ATTACHMENTS:
            _refuse(f"message {number} has more than {_MOST_ATTACHMENTS} images")
    if content is None and role == "assistant":
        content = ""  # a message that contains only tool calls
    if not isinstance(content, str):
        _refuse(f"the content of message {number} is not text")
    return role, content, tuple(images)


def _is_image(part: Any) -> bool:
    image = part.get("image_url") if isinstance(part, dict) and part.get("type") == "image_url" else None
    return isinstance(image, dict) and isinstance(image.get("url"), str)


def _data_in(url: str) -> bytes | None:
    """Return the bytes in an image data URL; None for other or invalid URLs."""
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:image/") and head.endswith(";base64")):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        return None


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _new_chat(title: str, model: str, turns: Sequence[ExportedTurn]) -> Chat:
    first = next((turn for turn in turns if turn.role != "system"), None)
    default_title = (
        title_of(first.content, (*map(_image, first.images), *first.attachments)) if first is not None else ""
    )
    return Chat(
        id=uuid.uuid4().hex,
        title=one_line(title, TITLE_LENGTH) or default_title,
        model=one_line(model, 4096),
        date=date.today().isoformat(),
        created_at=time.time(),
        updated_at=time.time(),
    )


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _past(when: float) -> float:
    """Return a time (seconds since 1970) if it is in the past, else the current time."""
    now = time.time()
    return when if math.isfinite(when) and 0 < when <= now else now


def _refuse(why: str) -> Never:
    raise NotAChat(f"The file is not a valid conversation: {why}.", hint=_KNOWN)
