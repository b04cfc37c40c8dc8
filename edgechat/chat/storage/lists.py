"""The SQL that finds and lists chats: those that are kept, or with `trashed` those in the trash."""

from __future__ import annotations

import itertools
import sqlite3

from edgechat.chat.records import Chat, Front, Headline, Listed
from edgechat.chat.storage.rows import CHAT, CHAT_OF_C, chat_of

_SHORTEST = 8
"""Letters of an id that a list shows at least."""


def chats(db: sqlite3.Connection, limit: int, *, trashed: bool = False) -> list[Chat]:
    """Return the chats, the one that was used last, or put into the trash last, first."""
    order = "trashed_at DESC, updated_at DESC" if trashed else "updated_at DESC"
    rows = db.execute(
        f"SELECT {CHAT} FROM conversations WHERE {_within(trashed)} ORDER BY {order} LIMIT ?", (limit,)
    )
    return [chat_of(row) for row in rows]


def chat(db: sqlite3.Connection, chat_id: str, *, trashed: bool = False) -> Chat | None:
    """Return one chat, or None."""
    row = db.execute(
        f"SELECT {CHAT} FROM conversations WHERE id = ? AND {_within(trashed)}", (chat_id,)
    ).fetchone()
    return None if row is None else chat_of(row)


def is_kept(db: sqlite3.Connection, chat_id: str) -> bool:
    """Say whether there is such a chat outside the trash."""
    query = f"SELECT 1 FROM conversations WHERE id = ? AND {_within(trashed=False)}"
    return db.execute(query, (chat_id,)).fetchone() is not None


def latest(db: sqlite3.Connection, front: Front) -> Chat | None:
    """Return the chat that was used last of those held at `front`, or None."""
    row = db.execute(
        f"SELECT {CHAT} FROM conversations WHERE front = ? AND trashed_at IS NULL "
        "ORDER BY updated_at DESC LIMIT 1",
        (front,),
    ).fetchone()
    return None if row is None else chat_of(row)


def beginning_with(db: sqlite3.Connection, prefix: str, *, trashed: bool | None = False) -> list[Chat]:
    """Return the chats whose ids begin so (trashed None: in the trash or not), the one used last first."""
    rows = db.execute(
        f"SELECT {CHAT} FROM conversations WHERE substr(id, 1, ?) = ? AND {_within(trashed)} "
        "ORDER BY updated_at DESC",
        (len(prefix), prefix),
    )
    return [chat_of(row) for row in rows]


def listed(db: sqlite3.Connection, limit: int, *, trashed: bool = False) -> list[Listed]:
    """Return the chats as a list shows them, in the order of `chats`."""
    ids = sorted(name for (name,) in db.execute("SELECT id FROM conversations"))
    between = [0, *(_shared(one, other) for one, other in itertools.pairwise(ids)), 0]
    lengths = {name: max(_SHORTEST, 1 + max(between[at : at + 2])) for at, name in enumerate(ids)}
    return [
        Listed(chat=one, prefix=one.id[: lengths[one.id]], n_messages=_count(db, one.id))
        for one in chats(db, limit, trashed=trashed)
        if one.id in lengths  # else another program has begun it just now
    ]


def headlines(db: sqlite3.Connection, limit: int, offset: int) -> list[Headline]:
    """Return the chats, the pinned ones first, and among each the one that was used last."""
    writing = "SELECT 1 FROM turns WHERE state = 'streaming' AND conversation_id = c.id"
    rows = db.execute(
        f"SELECT {CHAT_OF_C}, EXISTS ({writing}) FROM conversations c WHERE trashed_at IS NULL "
        "ORDER BY pinned DESC, updated_at DESC LIMIT ? OFFSET ?",
        (limit, offset),
    )
    return [Headline(chat=chat_of(row[:-1]), writing=bool(row[-1])) for row in rows]


def recent_questions(db: sqlite3.Connection, limit: int) -> list[str]:
    """Return what was asked, the newest first, each text once."""
    rows = db.execute(
        "SELECT t.content FROM turns t JOIN conversations c ON c.id = t.conversation_id "
        "WHERE t.number IS NOT NULL AND t.role = 'user' AND t.content != '' AND c.trashed_at IS NULL "
        "ORDER BY t.number DESC"
    )
    found: dict[str, None] = {}
    while len(found) < limit and (row := rows.fetchone()) is not None:
        found.setdefault(row[0])
    rows.close()
    return list(found)


def _within(trashed: bool | None) -> str:
    return "TRUE" if trashed is None else f"trashed_at IS {'NOT ' * trashed}NULL"


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
