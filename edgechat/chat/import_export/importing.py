"""Reading a conversation from a file: what `export.to_json` wrote, or messages as in OpenAI's API.

Files are untrusted: size, depth and counts are bounded, and everything gets new ids, so that reading a file
twice gives two conversations.
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
from edgechat.chat.records import Chat, Role, Turn
from edgechat.chat.storage.rows import settings_of
from edgechat.chat.storage.store import TITLE_LENGTH

MOST_BYTES = 64 * 2**20
MOST_TURNS = 100_000
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
    """A conversation that is not stored yet; see `Store.add`."""

    chat: Chat
    turns: tuple[Turn, ...]


def parse_chat(text: str | bytes) -> ImportedChat:
    """Return the conversation in a file. Raises NotAChat, which says what is wrong with it."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(raw) > MOST_BYTES:
        _refuse(f"it has {len(raw) // 2**20} MiB, and the limit is {MOST_BYTES // 2**20}")
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
    # Settings are read leniently, as from the store.
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
        settings=settings_of(msgspec.json.encode(settings).decode()),
        leaf=ids.get(file.leaf or ""),
    )
    return ImportedChat(chat=chat, turns=tuple(_turn(turn, chat.id, ids) for turn in file.turns))


def _check(turns: Sequence[ExportedTurn]) -> None:
    """Refuse turns that are not a tree."""
    if not turns:
        _refuse("it contains no turns")
    if len(turns) > MOST_TURNS:
        _refuse(f"it has {len(turns)} turns, and the limit is {MOST_TURNS}")
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


def _turn(turn: ExportedTurn, chat_id: str, ids: dict[str, str]) -> Turn:
    values = {name: getattr(turn, name) for name in ExportedTurn.__struct_fields__}
    values |= {
        "id": ids[turn.id],
        "parent_id": ids[turn.parent_id] if turn.parent_id is not None else None,
        # No program writes it any more.
        "state": "interrupted" if turn.state == "streaming" else turn.state,
        "created_at": _past(turn.created_at),
    }
    return Turn(chat_id=chat_id, **values)


def _from_messages(messages: list[Any], model: str, title: str) -> ImportedChat:
    if len(messages) > MOST_TURNS:
        _refuse(f"it has {len(messages)} messages, and the limit is {MOST_TURNS}")
    texts: list[tuple[Role, str]] = []
    for number, message in enumerate(messages, 1):
        role, content = _message(number, message)
        if role == "system" and any(other != "system" for other, _ in texts):
            _refuse(f"message {number} is a system prompt, which must be the first message")
        if role == "system" and texts:
            texts[-1] = (role, f"{texts[-1][1]}\n\n{content}")
        else:
            texts.append((role, content))
    if not any(role != "system" for role, _ in texts):
        _refuse("it contains no text")
    turns: list[ExportedTurn] = []
    for role, content in texts:
        parent_id = turns[-1].id if turns else None
        turns.append(ExportedTurn(id=uuid.uuid4().hex, parent_id=parent_id, role=role, content=content))
    chat = _new_chat(title, model, turns)
    ids = {turn.id: turn.id for turn in turns}
    return ImportedChat(chat=chat, turns=tuple(_turn(turn, chat.id, ids) for turn in turns))


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
        content = ""  # a tool call
    if not isinstance(content, str):
        _refuse(f"the content of message {number} is not text")
    return role, content


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _new_chat(title: str, model: str, turns: Sequence[ExportedTurn]) -> Chat:
    first = next((turn for turn in turns if turn.role != "system"), None)
    default_title = title_of(first.content, first.attachments) if first is not None else ""
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
    """Return a time (seconds since 1970) if it is in the past, else the present one."""
    now = time.time()
    return when if math.isfinite(when) and 0 < when <= now else now


def _refuse(why: str) -> Never:
    raise NotAChat(f"The file is not a valid conversation: {why}.", hint=_KNOWN)
