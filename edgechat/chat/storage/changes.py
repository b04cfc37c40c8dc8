"""The SQL that changes a chat but not its replies, and deletes it: each function is one transaction."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Sequence

from edgechat.chat.records import ChatSettings, Turn
from edgechat.chat.storage.rows import TURN, as_json, turn_values


def update_chat(db: sqlite3.Connection, /, chat_id: str, **values: object) -> None:
    """Set columns of a chat: title, model, front, pinned, settings, or leaf (a turn of the line shown)."""
    columns = ", ".join(f"{name} = ?" for name in values)
    new = (as_json(value) if isinstance(value, ChatSettings) else value for value in values.values())
    db.execute(f"UPDATE conversations SET {columns} WHERE id = ?", (*new, chat_id))


def retitle(db: sqlite3.Connection, chat_id: str, old: str, new: str) -> bool:
    """Replace the title of a chat; return False if it is not `old`."""
    changed = "UPDATE conversations SET title = ? WHERE id = ? AND title = ?"
    return db.execute(changed, (new, chat_id, old)).rowcount > 0


def set_system(db: sqlite3.Connection, chat_id: str, system: Turn | None) -> None:
    """Change, add or (None) remove the system prompt of a chat; of a change, only the content is used."""
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
            # Detach what follows it, which would be deleted with it.
            db.execute("UPDATE turns SET parent_id = NULL WHERE parent_id = ?", row)
            db.execute("DELETE FROM turns WHERE id = ?", row)


def trash(db: sqlite3.Connection, chat_ids: Sequence[str]) -> None:
    """Move chats to the trash; the time of those that are there already stays."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "UPDATE conversations SET trashed_at = ? WHERE id = ? AND trashed_at IS NULL",
            [(time.time(), chat_id) for chat_id in chat_ids],
        )


def restore(db: sqlite3.Connection, chat_id: str) -> bool:
    """Take a chat out of the trash; return False if it was deleted permanently."""
    return db.execute("UPDATE conversations SET trashed_at = NULL WHERE id = ?", (chat_id,)).rowcount > 0


def trashed(db: sqlite3.Connection, before: float) -> list[str]:
    """Return the ids of the chats that were moved to the trash before a time (seconds since 1970)."""
    rows = db.execute("SELECT id FROM conversations WHERE trashed_at < ?", (before,))
    return [chat_id for (chat_id,) in rows]


def crowded_out(db: sqlite3.Connection, n_chats: int, n_bytes: int) -> list[str]:
    """Return the ids of the chats that exceed the trash's limits, the oldest ones.

    The latest one always has room.
    """
    texts = ("content", "thinking", "attachments", "rounds")
    size = " + ".join(f"coalesce(length(CAST({name} AS BLOB)), 0)" for name in texts)
    rows = db.execute(
        f"SELECT id, (SELECT coalesce(sum({size}), 0) FROM turns WHERE conversation_id = c.id) "
        "FROM conversations c WHERE trashed_at IS NOT NULL ORDER BY trashed_at DESC, updated_at DESC"
    ).fetchall()
    totals = itertools.accumulate(n for _, n in rows)
    return [
        chat_id
        for index, ((chat_id, _), total) in enumerate(zip(rows, totals, strict=True))
        if index and (index >= n_chats or total > n_bytes)
    ]


def delete_chats(db: sqlite3.Connection, ids: Sequence[str], *, only_trashed: bool = False) -> list[str]:
    """Delete chats, their turns, and their words in the index; return the ids of those that existed."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        deleted = [chat_id for chat_id in ids if _delete(db, chat_id, only_trashed)]
        if deleted:
            # Else the words stay in older segments of the index until those happen to be merged.
            db.execute("INSERT INTO said (said) VALUES ('optimize')")
    if deleted:
        # Else they stay in the WAL as long as another program keeps that open.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return deleted


_IN_RESULTS = (
    "SELECT tree.value FROM turns, json_tree(iif(json_valid(turns.rounds), turns.rounds, '0')) tree "
    "WHERE turns.rounds LIKE '%\"digest\"%' AND tree.key = 'digest'"
)
"""The digests of the images in results of calls."""


def images_of(db: sqlite3.Connection, chat_ids: Sequence[str]) -> set[str]:
    """Return the digests of the images in some chats."""
    questions = "SELECT digest FROM turn_images JOIN turns t ON t.id = turn_id WHERE conversation_id = ?1"
    query = f"{questions} UNION {_IN_RESULTS} AND turns.conversation_id = ?1"
    return {digest for chat_id in chat_ids for (digest,) in db.execute(query, (chat_id,))}


def used_images(db: sqlite3.Connection) -> set[str]:
    """Return the digests of the images of all turns, and of what was typed and not sent."""
    unsent = (
        "SELECT tree.value FROM unsent, json_tree(iif(json_valid(unsent.value), unsent.value, '0')) tree "
        "WHERE tree.key = 'digest'"
    )
    query = f"SELECT digest FROM turn_images UNION {_IN_RESULTS} UNION {unsent}"
    return {digest for (digest,) in db.execute(query)}


def _delete(db: sqlite3.Connection, chat_id: str, only_trashed: bool) -> bool:
    where = "WHERE id = ? AND (trashed_at IS NOT NULL OR NOT ?)"
    if db.execute(f"SELECT 1 FROM conversations {where}", (chat_id, only_trashed)).fetchone() is None:
        return False
    # From the last on: cascading deletes are limited to a depth of 1,000 turns.
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
