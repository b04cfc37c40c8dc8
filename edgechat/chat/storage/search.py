"""Search: the SQL over the index of everything that was said (see `migrations`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from edgechat.base.text import one_line
from edgechat.chat.records import Chat, Hit
from edgechat.chat.storage.query import SearchWord, Snippet, marks, occur, snippet, words_of
from edgechat.chat.storage.rows import CHAT, CHAT_OF_C, N_CHAT, attachments_of, chat_of

_RANKED = 2000
"""Of a word that more turns have than this, the newest ones are ranked: a rank costs a microsecond."""
_MOST_TITLES = 10
_IN_TURN = "(t.content LIKE ? ESCAPE '~' OR t.attachments LIKE ? ESCAPE '~')"


def search(db: sqlite3.Connection, text: str, limit: int, chat_id: str | None) -> list[Hit]:
    """Return where the words of `text` are (see `query`), in one chat or in all.

    Chats whose title has them come first, then the best by BM25, of equals the newest.
    """
    words = words_of(text)
    if not words or limit < 1:
        return []
    hits = [_hit(row, words) for row in _turns(db, words, limit, chat_id)]
    if chat_id is not None:
        return hits
    best = {hit.chat.id: hit for hit in reversed(hits)}
    first = [best.get(chat.id) or _title_hit(chat, words) for chat in _titled(db, words)]
    return [*first, *(hit for hit in hits if hit not in first)][:limit]


def _turns(
    db: sqlite3.Connection, words: list[SearchWord], limit: int, chat_id: str | None
) -> Iterator[tuple[Any, ...]]:
    match = " AND ".join(filter(None, (word.match for word in words)))
    wheres, values = ["c.trashed_at IS NULL"], list[Any]()
    for like in filter(None, (word.like for word in words)):
        wheres.append(_IN_TURN)
        values += [like, like]
    if chat_id is not None:
        wheres.append("t.conversation_id = ?")
        values.append(chat_id)
    where, chat = " AND ".join(wheres), "conversations c ON c.id = t.conversation_id"
    if match:
        between, bounds = _bounds(db, chat_id)
        found = (
            "SELECT t.number AS number, bm25(said, 1.0, 0.5) AS score FROM said "
            f"CROSS JOIN turns t ON t.number = said.rowid CROSS JOIN {chat} "
            f"WHERE said MATCH ? {between} AND {where} ORDER BY said.rowid DESC LIMIT {_RANKED}"
        )
        values = [match, *bounds, *values]
    else:
        found = (
            f"SELECT t.number AS number, 0 AS score FROM turns t CROSS JOIN {chat} "
            f"WHERE t.number IS NOT NULL AND {where} ORDER BY t.number DESC LIMIT {int(limit)}"
        )
    return db.execute(
        f"SELECT {CHAT_OF_C}, t.id, t.role, t.created_at, t.content, t.attachments FROM ({found}) f "
        f"JOIN turns t ON t.number = f.number JOIN {chat} "
        f"ORDER BY f.score, f.number DESC LIMIT {int(limit)}",
        values,
    )


def _bounds(db: sqlite3.Connection, chat_id: str | None) -> tuple[str, list[Any]]:
    # The index knows numbers only; a chat's lie between two, with others' among them.
    if chat_id is None:
        return "", []
    span = "SELECT min(number), max(number) FROM turns WHERE conversation_id = ?"
    return "AND said.rowid BETWEEN ? AND ?", list(db.execute(span, (chat_id,)).fetchone())


def _hit(row: tuple[Any, ...], words: list[SearchWord]) -> Hit:
    turn_id, role, created_at, content, attached = row[N_CHAT:]
    found = _best_snippet(content, attached, words)
    return Hit(
        chat=chat_of(row[:N_CHAT]),
        turn_id=turn_id,
        role=role,
        created_at=created_at,
        snippet=found.text,
        marks=found.marks,
    )


def _best_snippet(content: str, attached: str | None, words: list[SearchWord]) -> Snippet:
    best = snippet(content, words)
    if best.n_words < len(words):
        for one in attachments_of(attached):
            found = snippet(f"{one.name}: {one.text}", words)
            best = found if found.n_words > best.n_words else best
    return best


def _titled(db: sqlite3.Connection, words: list[SearchWord]) -> list[Chat]:
    """Return the chats whose titles have the words, the ones that were used last."""
    shown = "FROM conversations WHERE trashed_at IS NULL"
    titles = db.execute(f"SELECT id, title {shown} ORDER BY updated_at DESC")
    ids = [name for name, title in titles if occur(words, title)][:_MOST_TITLES]
    places = ", ".join("?" * len(ids))
    rows = db.execute(f"SELECT {CHAT} {shown} AND id IN ({places}) ORDER BY updated_at DESC", ids)
    return [chat_of(row) for row in rows]


def _title_hit(chat: Chat, words: list[SearchWord]) -> Hit:
    line = one_line(chat.title)
    return Hit(
        chat=chat,
        turn_id="",
        role="user",
        created_at=chat.updated_at,
        snippet=line,
        marks=marks(line, words),
    )
