"""Reading a conversation from a file: what `export.to_json` wrote, or messages as OpenAI's API takes them.

A file is a stranger's: its size, its depth and its counts are bounded, and everything in it gets an id of
ours, so that reading it twice gives two conversations.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from datetime import date
from typing import Any, Never

import msgspec

from edgechat.base.errors import NotAChat
from edgechat.base.text import one_line
from edgechat.chat.import_export.format import FORMAT, VERSION, ExportedFile, ExportedTurn
from edgechat.chat.messages import title_of
from edgechat.chat.records import Attachment, Chat, Role, Turn
from edgechat.chat.storage.rows import settings_of
from edgechat.chat.storage.store import TITLE_LENGTH

MOST_BYTES = 64 * 2**20
_MOST_TURNS = 100_000
_MOST_ATTACHMENTS = 100
_KNOWN = (
    'Supported are files written by `edgechat chats export --json`, and lists of {"role": …, "content": …}.'
)
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class ImportedChat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that is in no store yet; `Store.add(chat, turns)` puts it there."""

    chat: Chat
    turns: tuple[Turn, ...]


def imported(text: str | bytes) -> ImportedChat:
    """Return the conversation that is in a file. Raises NotAChat, which names what is wrong with it."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(raw) > MOST_BYTES:
        _refuse(f"it has {len(raw) // 2**20} MiB, and the limit is {MOST_BYTES // 2**20}")
    try:
        found = msgspec.json.decode(raw.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _refuse(f"it is not valid JSON ({one_line(str(error), 100)})")
    except RecursionError:
        _refuse("it is nested too deeply")
    if isinstance(found, dict) and found.get("format") == FORMAT:
        return _own(found)
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list):
        _refuse("it contains no conversation")
    model = found.get("model") if isinstance(found, dict) else None
    title = found.get("title") if isinstance(found, dict) else None
    return _of_messages(messages, *(one if isinstance(one, str) else "" for one in (model, title)))


def _own(found: dict[str, Any]) -> ImportedChat:
    if isinstance(found.get("version"), int) and found["version"] > VERSION:
        raise NotAChat(
            "This file was written by a newer edgechat.",
            hint="Update edgechat: pip install --upgrade edgechat",
        )
    said = found.get("chat")
    settings = said.pop("settings", None) if isinstance(said, dict) else None
    try:
        filed = msgspec.convert(found, ExportedFile)
    except msgspec.ValidationError as error:
        _refuse(one_line(str(error)).replace("Expected", "expected", 1))
    except RecursionError:
        _refuse("it is nested too deeply")
    _check(filed.turns)
    chat = _chat(filed.chat.title, filed.chat.model, filed.turns)
    chat = msgspec.structs.replace(
        chat,
        date=filed.chat.date if _is_date(filed.chat.date) else chat.date,
        created_at=_past(filed.chat.created_at),
        updated_at=_past(filed.chat.updated_at),
        pinned=filed.chat.pinned,
        settings=settings_of(msgspec.json.encode(settings).decode()),
    )
    names = {turn.id: uuid.uuid4().hex for turn in filed.turns}
    turns = tuple(_turn(turn, chat.id, names) for turn in filed.turns)
    return ImportedChat(chat=msgspec.structs.replace(chat, leaf=names.get(filed.leaf or "")), turns=turns)


def _check(turns: Sequence[ExportedTurn]) -> None:
    """Refuse turns that make no tree."""
    if not turns:
        _refuse("it contains no turns")
    if len(turns) > _MOST_TURNS:
        _refuse(f"it has {len(turns)} turns, and the limit is {_MOST_TURNS}")
    known: set[str] = set()
    for number, turn in enumerate(turns, 1):
        if turn.id in known:
            _refuse(f"turn {number} has the same id as an earlier one")
        if turn.parent_id is not None and turn.parent_id not in known:
            _refuse(f"turn {number} answers a turn that does not precede it")
        if turn.role == "system" and number > 1:
            _refuse(f"turn {number} is a system prompt, which must be the first turn")
        if len(turn.attachments) > _MOST_ATTACHMENTS:
            _refuse(f"turn {number} has more than {_MOST_ATTACHMENTS} attachments")
        known.add(turn.id)


def _turn(turn: ExportedTurn, chat_id: str, names: dict[str, str]) -> Turn:
    return Turn(
        id=names[turn.id],
        chat_id=chat_id,
        role=turn.role,
        content=turn.content,
        thinking=turn.thinking,
        # Whoever wrote it, nobody does now.
        state="interrupted" if turn.state == "streaming" else turn.state,
        parent_id=names[turn.parent_id] if turn.parent_id is not None else None,
        created_at=_past(turn.created_at),
        figures=turn.figures,
        error=turn.error,
        attachments=turn.attachments,
    )


def _of_messages(messages: list[Any], model: str, title: str) -> ImportedChat:
    if len(messages) > _MOST_TURNS:
        _refuse(f"it has {len(messages)} messages, and the limit is {_MOST_TURNS}")
    said: list[tuple[Role, str]] = []
    for number, message in enumerate(messages, 1):
        role, content = _message(number, message)
        if role == "system" and any(other != "system" for other, _ in said):
            _refuse(f"message {number} is a system prompt, which must be the first message")
        if role == "system" and said:
            said[-1] = (role, f"{said[-1][1]}\n\n{content}")
        else:
            said.append((role, content))
    if not any(role != "system" for role, _ in said):
        _refuse("it contains no text")
    turns: list[ExportedTurn] = []
    for role, content in said:
        parent_id = turns[-1].id if turns else None
        turns.append(ExportedTurn(id=uuid.uuid4().hex, parent_id=parent_id, role=role, content=content))
    chat = _chat(title, model, turns)
    names = {turn.id: turn.id for turn in turns}
    return ImportedChat(chat=chat, turns=tuple(_turn(turn, chat.id, names) for turn in turns))


def _message(number: int, message: Any) -> tuple[Role, str]:
    if not isinstance(message, dict):
        _refuse(f"message {number} is not an object with a role and content")
    name = message.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        _refuse(f"message {number} has the role {one_line(repr(name), 40)}: not system, user or assistant")
    content = message.get("content")
    if isinstance(content, list):
        if not all(_is_text(part) for part in content):
            _refuse(f"message {number} has parts that are not text")
        content = "\n\n".join(part["text"] for part in content)
    if content is None and role == "assistant":
        content = ""  # it called a tool
    if not isinstance(content, str):
        _refuse(f"the content of message {number} is not text")
    return role, content


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _chat(title: str, model: str, turns: Sequence[ExportedTurn]) -> Chat:
    first: tuple[str, tuple[Attachment, ...]] = next(
        ((turn.content, turn.attachments) for turn in turns if turn.role != "system"), ("", ())
    )
    return Chat(
        id=uuid.uuid4().hex,
        title=one_line(title, TITLE_LENGTH) or title_of(*first),
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
    """Return a time (seconds since 1970) that can have been; now, where this one cannot."""
    now = time.time()
    return when if math.isfinite(when) and 0 < when <= now else now


def _refuse(why: str) -> Never:
    raise NotAChat(f"The file is not a valid conversation: {why}.", hint=_KNOWN)
