"""The SQL that changes what a chat is called, how it is kept, and whether: each function one transaction."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Sequence

from edgechat.chat.records import ChatSettings, Front, Turn
from edgechat.chat.storage.rows import TURN, as_json, turn_values

_SAID = ("content", "thinking", "attachments")


def note_use(db: sqlite3.Connection, chat_id: str, model: str, front: Front) -> None:
    """Note which model writes in a chat now, and where."""
    db.execute("UPDATE conversations SET model = ?, front = ? WHERE id = ?", (model, front, chat_id))


def rename(db: sqlite3.Connection, chat_id: str, title: str) -> None:
    """Give a chat another title."""
    db.execute("UPDATE conversations SET title = ? WHERE id = ?", (title, chat_id))


def pin(db: sqlite3.Connection, chat_id: str, pinned: bool) -> None:
    """Keep a chat at the top of the list, or no longer."""
    db.execute("UPDATE conversations SET pinned = ? WHERE id = ?", (pinned, chat_id))


def set_settings(db: sqlite3.Connection, chat_id: str, settings: ChatSettings) -> None:
    """Write what was decided for a chat."""
    db.execute("UPDATE conversations SET settings = ? WHERE id = ?", (as_json(settings), chat_id))


def choose(db: sqlite3.Connection, chat_id: str, turn_id: str) -> None:
    """Remember which line of turns is shown: the one with this turn."""
    db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (turn_id, chat_id))


def set_system(db: sqlite3.Connection, chat_id: str, system: Turn | None) -> None:
    """Change, add or (None) remove the system prompt of a chat, which all its lines begin with."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        row = db.execute(
            "SELECT id FROM turns WHERE conversation_id = ? AND role = 'system' AND parent_id IS NULL "
            "ORDER BY position LIMIT 1",
            (chat_id,),
        ).fetchone()
        if row is not None and system is not None:
            db.execute("UPDATE turns SET content = ? WHERE id = ?", (system.content, row[0]))
        elif system is not None:
            _put_first(db, system)
        elif row is not None:
            # What follows it would go with it.
            db.execute("UPDATE turns SET parent_id = NULL WHERE parent_id = ?", row)
            db.execute("DELETE FROM turns WHERE id = ?", row)


def trash(db: sqlite3.Connection, chat_ids: Sequence[str]) -> None:
    """Put chats into the trash; the time counts from when they first came there."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "UPDATE conversations SET trashed_at = ? WHERE id = ? AND trashed_at IS NULL",
            [(time.time(), chat_id) for chat_id in chat_ids],
        )


def restore(db: sqlite3.Connection, chat_id: str) -> bool:
    """Take a chat out of the trash; False where it is gone for good."""
    found = db.execute("UPDATE conversations SET trashed_at = NULL WHERE id = ?", (chat_id,))
    return found.rowcount > 0


def trashed(db: sqlite3.Connection, before: float) -> list[str]:
    """Return the chats that were put into the trash before a time (seconds since 1970)."""
    return [name for (name,) in db.execute("SELECT id FROM conversations WHERE trashed_at < ?", (before,))]


def crowded_out(db: sqlite3.Connection, n_chats: int, n_bytes: int) -> list[str]:
    """Return the chats for which the trash, which holds so much, has no room beside those put there later.

    The one that came last has room, however large it is.
    """
    size = " + ".join(f"coalesce(length(CAST({name} AS BLOB)), 0)" for name in _SAID)
    rows = db.execute(
        f"SELECT id, (SELECT coalesce(sum({size}), 0) FROM turns WHERE conversation_id = c.id) "
        "FROM conversations c WHERE trashed_at IS NOT NULL ORDER BY trashed_at DESC, updated_at DESC"
    ).fetchall()
    totals = itertools.accumulate(n for _, n in rows)
    return [
        name
        for at, ((name, _), total) in enumerate(zip(rows, totals, strict=True))
        if at and (at >= n_chats or total > n_bytes)
    ]


def delete_chats(db: sqlite3.Connection, ids: Sequence[str], *, only_trashed: bool = False) -> list[str]:
    """Delete chats, their turns, and their words in the index; return those that were there."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        gone = [name for name in ids if _delete(db, name, only_trashed)]
        if gone:
            # Else the words stay in the older parts of the index until those happen to be merged.
            db.execute("INSERT INTO said (said) VALUES ('optimize')")
    if gone:
        # Else they stay in the file beside, as long as another program keeps that open.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return gone


def _delete(db: sqlite3.Connection, chat_id: str, only_trashed: bool) -> bool:
    where = "WHERE id = ? AND (trashed_at IS NOT NULL OR NOT ?)"
    if db.execute(f"SELECT 1 FROM conversations {where}", (chat_id, only_trashed)).fetchone() is None:
        return False
    # The last first: a foreign key that deletes what follows goes no deeper than 1,000 turns.
    ids = db.execute("SELECT id FROM turns WHERE conversation_id = ? ORDER BY position DESC", (chat_id,))
    db.executemany("DELETE FROM turns WHERE id = ?", ids.fetchall())
    db.execute("DELETE FROM conversations WHERE id = ?", (chat_id,))
    return True


def _put_first(db: sqlite3.Connection, system: Turn) -> None:
    marks = ", ".join("?" * len(turn_values(system)))
    db.execute(
        f"INSERT INTO turns ({TURN}, updated_at, position) "
        f"SELECT {marks}, ?, coalesce(min(position), 1) - 1 FROM turns WHERE conversation_id = ?",
        (*turn_values(system), system.created_at, system.chat_id),
    )
    db.execute(
        "UPDATE turns SET parent_id = ? WHERE conversation_id = ? AND parent_id IS NULL AND id != ?",
        (system.id, system.chat_id, system.id),
    )
