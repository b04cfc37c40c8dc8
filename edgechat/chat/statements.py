"""Every SQL statement but the schema's: plain functions of a connection, each one transaction."""

from __future__ import annotations

import itertools
import sqlite3
import time
from typing import Any

import msgspec

from edgechat.chat.records import Chat, Figures, Front, Listed, Turn
from edgechat.engine.types import ErrorInfo
from edgechat.owner import Owner, alive
from edgechat.text import one_line

_CHAT_FIELDS = Chat.__struct_fields__
_CHAT = ", ".join(_CHAT_FIELDS)
_TURN = "id, conversation_id, role, content, thinking, state, parent_id, created_at, figures, error"
_SHORTEST = 8
"""Letters of an id that a list shows at least."""


def insert_turn(
    db: sqlite3.Connection, turn: Turn, owner: Owner | None, chat: Chat | None, system: Turn | None
) -> bool:
    """Append a turn, and before it the chat it begins and that chat's system prompt, where there are any.

    False, and nothing is written, for a question where another one follows the same turn already.
    """
    with db:
        db.execute("BEGIN IMMEDIATE")
        if turn.role == "user" and _has_question(db, turn.parent_id):
            return False
        if chat is not None:
            marks = ", ".join("?" * len(_CHAT_FIELDS))
            db.execute(f"INSERT INTO conversations ({_CHAT}) VALUES ({marks})", msgspec.structs.astuple(chat))
        if system is not None:
            _append(db, system, None)
        _append(db, turn, owner)
        _touch(db, turn.chat_id)
    return True


def update_turn(db: sqlite3.Connection, turn: Turn) -> None:
    """Write what may have changed of a reply; one that does not stream any more has no owner."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "UPDATE turns SET content = ?, thinking = ?, state = ?, figures = ?, error = ?, updated_at = ?, "
            "owner = CASE WHEN ? = 'streaming' THEN owner END WHERE id = ?",
            (
                turn.content,
                turn.thinking,
                turn.state,
                _json(turn.figures),
                _json(turn.error),
                time.time(),
                turn.state,
                turn.id,
            ),
        )
        if turn.state != "streaming":
            _touch(db, turn.chat_id)


def note_use(db: sqlite3.Connection, chat_id: str, model: str, front: Front) -> None:
    """Note which model writes in a chat now, and where."""
    db.execute("UPDATE conversations SET model = ?, front = ? WHERE id = ?", (model, front, chat_id))


def chats(db: sqlite3.Connection, limit: int) -> list[Chat]:
    """Return the chats, the one that was used last first."""
    rows = db.execute(f"SELECT {_CHAT} FROM conversations ORDER BY updated_at DESC LIMIT ?", (limit,))
    return [_chat(row) for row in rows]


def chat(db: sqlite3.Connection, chat_id: str) -> Chat | None:
    """Return one chat, or None."""
    row = db.execute(f"SELECT {_CHAT} FROM conversations WHERE id = ?", (chat_id,)).fetchone()
    return None if row is None else _chat(row)


def latest(db: sqlite3.Connection, front: Front) -> Chat | None:
    """Return the chat that was used last of those held at `front`, or None."""
    row = db.execute(
        f"SELECT {_CHAT} FROM conversations WHERE front = ? ORDER BY updated_at DESC LIMIT 1", (front,)
    ).fetchone()
    return None if row is None else _chat(row)


def beginning_with(db: sqlite3.Connection, prefix: str) -> list[Chat]:
    """Return the chats whose ids begin so, the one that was used last first."""
    rows = db.execute(
        f"SELECT {_CHAT} FROM conversations WHERE substr(id, 1, ?) = ? ORDER BY updated_at DESC",
        (len(prefix), prefix),
    )
    return [_chat(row) for row in rows]


def listed(db: sqlite3.Connection, limit: int) -> list[Listed]:
    """Return the chats as a list shows them, the one that was used last first."""
    ids = sorted(name for (name,) in db.execute("SELECT id FROM conversations"))
    between = [0, *(_shared(one, other) for one, other in itertools.pairwise(ids)), 0]
    lengths = {name: max(_SHORTEST, 1 + max(between[at : at + 2])) for at, name in enumerate(ids)}
    return [
        Listed(chat=one, prefix=one.id[: lengths[one.id]], n_messages=_count(db, one.id))
        for one in chats(db, limit)
        if one.id in lengths  # else another program has begun it just now
    ]


def turns(db: sqlite3.Connection, chat_id: str) -> list[Turn]:
    """Return every turn of a chat in the order of writing, tries that were given up included."""
    rows = db.execute(f"SELECT {_TURN} FROM turns WHERE conversation_id = ? ORDER BY position", (chat_id,))
    return [_turn(row) for row in rows]


def delete_turn(db: sqlite3.Connection, turn_id: str) -> None:
    """Delete a turn and, by its foreign keys, all that follows from it."""
    db.execute("DELETE FROM turns WHERE id = ?", (turn_id,))


def delete_chat(db: sqlite3.Connection, chat_id: str) -> None:
    """Delete a chat and its turns."""
    db.execute("DELETE FROM conversations WHERE id = ?", (chat_id,))


def interrupt_orphans(db: sqlite3.Connection) -> int:
    """Mark the replies whose writer has died as interrupted; return how many there were."""
    streaming = db.execute("SELECT id, owner FROM turns WHERE state = 'streaming'").fetchall()
    orphans = [(turn_id,) for turn_id, owner in streaming if not _is_written(owner)]
    if orphans:
        with db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "UPDATE turns SET state = 'interrupted', owner = NULL WHERE id = ? AND state = 'streaming'",
                orphans,
            )
    return len(orphans)


def flaw(db: sqlite3.Connection) -> str | None:
    """Return the first thing in the file that does not hold together, or None; reads all of it."""
    (said,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return None if said == "ok" else one_line(said)


def preference(db: sqlite3.Connection, name: str) -> str | None:
    """Return what was remembered under a name, or None."""
    row = db.execute("SELECT value FROM preferences WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def set_preference(db: sqlite3.Connection, name: str, value: str) -> None:
    """Remember a value under a name."""
    db.execute("INSERT OR REPLACE INTO preferences (name, value) VALUES (?, ?)", (name, value))


def _append(db: sqlite3.Connection, turn: Turn, owner: Owner | None) -> None:
    db.execute(
        f"INSERT INTO turns ({_TURN}, owner, updated_at, position) "
        "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce(max(position) + 1, 0) "
        "FROM turns WHERE conversation_id = ?",
        (
            turn.id,
            turn.chat_id,
            turn.role,
            turn.content,
            turn.thinking,
            turn.state,
            turn.parent_id,
            turn.created_at,
            _json(turn.figures),
            _json(turn.error),
            _json(owner),
            turn.created_at,
            turn.chat_id,
        ),
    )


def _has_question(db: sqlite3.Connection, parent_id: str | None) -> bool:
    asked = "SELECT 1 FROM turns WHERE parent_id = ? AND role = 'user' LIMIT 1"
    return db.execute(asked, (parent_id,)).fetchone() is not None


def _count(db: sqlite3.Connection, chat_id: str) -> int:
    # Tries at one reply have one parent; only the first turn of all may have none.
    (count,) = db.execute(
        "SELECT count(DISTINCT coalesce(parent_id, '')) FROM turns "
        "WHERE conversation_id = ? AND role != 'system'",
        (chat_id,),
    ).fetchone()
    return int(count)


def _shared(one: str, other: str) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def _touch(db: sqlite3.Connection, chat_id: str) -> None:
    db.execute("UPDATE conversations SET updated_at = ? WHERE id = ?", (time.time(), chat_id))


def _is_written(owner: str | None) -> bool:
    return owner is not None and alive(msgspec.json.decode(owner, type=Owner))


def _json(value: Figures | ErrorInfo | Owner | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _chat(row: tuple[Any, ...]) -> Chat:
    return Chat(**dict(zip(_CHAT_FIELDS, row, strict=True)))


def _turn(row: tuple[Any, ...]) -> Turn:
    turn_id, chat_id, role, content, thinking, state, parent_id, created_at, figures, error = row
    return Turn(
        id=turn_id,
        chat_id=chat_id,
        role=role,
        content=content,
        thinking=thinking,
        state=state,
        parent_id=parent_id,
        created_at=created_at,
        figures=msgspec.json.decode(figures, type=Figures) if figures else None,
        error=msgspec.json.decode(error, type=ErrorInfo) if error else None,
    )
