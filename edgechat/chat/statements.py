"""Every SQL statement but the schema's: plain functions of a connection, each one transaction."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import msgspec

from edgechat.chat.records import Chat, Figures, Turn
from edgechat.engine.types import ErrorInfo
from edgechat.owner import Owner, alive
from edgechat.text import one_line

_CHAT = "id, title, model, date, created_at, updated_at"
_TURN = "id, conversation_id, role, content, thinking, state, parent_id, created_at, figures, error"


def insert_turn(db: sqlite3.Connection, turn: Turn, owner: Owner | None, chat: Chat | None) -> None:
    """Append a turn, and before it the chat it begins, if there is one."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        if chat is not None:
            db.execute(
                f"INSERT INTO conversations ({_CHAT}) VALUES (?, ?, ?, ?, ?, ?)",
                (chat.id, chat.title, chat.model, chat.date, chat.created_at, chat.updated_at),
            )
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
        _touch(db, turn.chat_id)


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


def set_model(db: sqlite3.Connection, chat_id: str, model: str) -> None:
    """Note which model writes in a chat now."""
    db.execute("UPDATE conversations SET model = ? WHERE id = ?", (model, chat_id))


def chats(db: sqlite3.Connection, limit: int) -> list[Chat]:
    """Return the chats, the one that was used last first."""
    rows = db.execute(f"SELECT {_CHAT} FROM conversations ORDER BY updated_at DESC LIMIT ?", (limit,))
    return [_chat(row) for row in rows]


def chat(db: sqlite3.Connection, chat_id: str) -> Chat | None:
    """Return one chat, or None."""
    row = db.execute(f"SELECT {_CHAT} FROM conversations WHERE id = ?", (chat_id,)).fetchone()
    return None if row is None else _chat(row)


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


def _touch(db: sqlite3.Connection, chat_id: str) -> None:
    db.execute("UPDATE conversations SET updated_at = ? WHERE id = ?", (time.time(), chat_id))


def _is_written(owner: str | None) -> bool:
    return owner is not None and alive(msgspec.json.decode(owner, type=Owner))


def _json(value: Figures | ErrorInfo | Owner | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _chat(row: tuple[Any, ...]) -> Chat:
    names = ("id", "title", "model", "date", "created_at", "updated_at")
    return Chat(**dict(zip(names, row, strict=True)))


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
