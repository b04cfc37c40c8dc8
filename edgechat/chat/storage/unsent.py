"""The SQL of unsent text: a row for each chat, and one for a program's new conversation."""

from __future__ import annotations

import sqlite3
import time

from edgechat.base.process.owner import Owner, alive
from edgechat.chat.storage.rows import as_json, owner_of

_WHERE = "conversation_id IS ? AND owner IS ?"


def keep(db: sqlite3.Connection, chat_id: str | None, owner: Owner, value: str) -> None:
    """Store a value for a chat, or for the owner's new conversation; an empty one deletes the row."""
    key = _key(chat_id, owner)
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"DELETE FROM unsent WHERE {_WHERE}", key)
        if value:
            db.execute(
                "INSERT INTO unsent (conversation_id, owner, value, updated_at) VALUES (?, ?, ?, ?)",
                (*key, value, time.time()),
            )


def of(db: sqlite3.Connection, chat_id: str | None, owner: Owner) -> str:
    """Return the value for a chat, or for the owner's new conversation; '' if there is none."""
    row = db.execute(f"SELECT value FROM unsent WHERE {_WHERE}", _key(chat_id, owner)).fetchone()
    return "" if row is None else str(row[0])


def take_over(db: sqlite3.Connection, owner: Owner) -> str:
    """Give the owner the newest row of a program that has ended, and return its value.

    Returns '' if there is none, or the owner has one already.
    """
    with db:
        db.execute("BEGIN IMMEDIATE")
        if of(db, None, owner):
            return ""
        rows = db.execute(
            "SELECT rowid, owner, value FROM unsent WHERE owner IS NOT NULL "
            "ORDER BY updated_at DESC, rowid DESC"
        )
        for rowid, previous, value in rows.fetchall():
            previous_owner = owner_of(previous)
            if previous_owner is None or not alive(previous_owner):
                db.execute("UPDATE unsent SET owner = ? WHERE rowid = ?", (as_json(owner), rowid))
                return str(value)
    return ""


def _key(chat_id: str | None, owner: Owner) -> tuple[str | None, str | None]:
    return chat_id, as_json(owner) if chat_id is None else None
