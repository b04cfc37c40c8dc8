"""The SQL that finds and lists chats: those outside the trash, or with `trashed` those in it."""

from __future__ import annotations

import itertools
import sqlite3

from edgechat.chat.records import Chat, Front, Headline, Listed
from edgechat.chat.storage.rows import CHAT, CHAT_OF_C, chat_of

_SHORTEST = 8
"""Minimum length of an id's prefix in a list."""


def chats(db: sqlite3.Connection, limit: int = 100, *, trashed: bool = False) -> list[Chat]:
    """Return the chats, the one that was used last, or moved to the trash last, first."""
    order = "trashed_at DESC, updated_at DESC" if trashed else "updated_at DESC"
    return _select(db, _within(trashed), order=order, limit=limit)


def chat(db: sqlite3.Connection, chat_id: str, *, trashed: bool = False) -> Chat | None:
    """Return one chat, or None."""
    return next(iter(_select(db, f"id = ? AND {_within(trashed)}", chat_id)), None)


def latest(db: sqlite3.Connection, front: Front) -> Chat | None:
    """Return the chat that was used last at `front`, or None."""
    return next(iter(_select(db, "front = ? AND trashed_at IS NULL", front, limit=1)), None)


def beginning_with(db: sqlite3.Connection, prefix: str, *, trashed: bool | None = False) -> list[Chat]:
    """Return the chats whose ids have a prefix, the one used last first; trashed None: of both kinds."""
    return _select(db, f"substr(id, 1, ?) = ? AND {_within(trashed)}", len(prefix), prefix)


def listed(db: sqlite3.Connection, limit: int, *, trashed: bool = False) -> list[Listed]:
    """Return the chats as a list shows them, in the order of `chats`."""
    ids = sorted(chat_id for (chat_id,) in db.execute("SELECT id FROM conversations"))
    # How many characters neighbouring ids have in common.
    common = [0, *itertools.starmap(_n_common, itertools.pairwise(ids)), 0]
    lengths = {name: max(_SHORTEST, 1 + max(common[at : at + 2])) for at, name in enumerate(ids)}
    return [
        Listed(chat=chat, prefix=chat.id[: lengths[chat.id]], n_messages=_n_messages(db, chat.id))
        for chat in chats(db, limit, trashed=trashed)
        if chat.id in lengths  # else another program has begun it just now
    ]


def headlines(db: sqlite3.Connection, limit: int = 100, offset: int = 0) -> list[Headline]:
    """Return the pinned chats, then the others; of each, the one that was used last first."""
    writing = "SELECT 1 FROM turns WHERE state = 'streaming' AND conversation_id = c.id"
    rows = db.execute(
        f"SELECT {CHAT_OF_C}, EXISTS ({writing}) FROM conversations c WHERE trashed_at IS NULL "
        "ORDER BY pinned DESC, updated_at DESC LIMIT ? OFFSET ?",
        (limit, offset),
    )
    return [Headline(chat=chat_of(row[:-1]), writing=bool(row[-1])) for row in rows]


def recent_questions(db: sqlite3.Connection, limit: int = 100) -> list[str]:
    """Return the latest questions, the newest first, each text once."""
    rows = db.execute(
        "SELECT t.content FROM turns t JOIN conversations c ON c.id = t.conversation_id "
        "WHERE t.number IS NOT NULL AND t.role = 'user' AND t.content != '' AND c.trashed_at IS NULL "
        "ORDER BY t.number DESC"
    )
    texts: dict[str, None] = {}
    while len(texts) < limit and (row := rows.fetchone()) is not None:
        texts.setdefault(row[0])
    rows.close()
    return list(texts)


def _select(
    db: sqlite3.Connection, where: str, *values: object, order: str = "updated_at DESC", limit: int = -1
) -> list[Chat]:
    query = f"SELECT {CHAT} FROM conversations WHERE {where} ORDER BY {order} LIMIT ?"
    return [chat_of(row) for row in db.execute(query, (*values, limit))]


def _within(trashed: bool | None) -> str:
    return "TRUE" if trashed is None else f"trashed_at IS {'NOT ' * trashed}NULL"


def _n_common(one: str, other: str) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def _n_messages(db: sqlite3.Connection, chat_id: str) -> int:
    # Attempts at one reply have the same parent; only the first turn of all has none.
    (count,) = db.execute(
        "SELECT count(DISTINCT coalesce(parent_id, '')) FROM turns "
        "WHERE conversation_id = ? AND role != 'system'",
        (chat_id,),
    ).fetchone()
    return int(count)
