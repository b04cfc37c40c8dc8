"""Search: the SQL over the index of all texts (see `migrations`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from edgechat.base.text import one_line
from edgechat.chat.records import Chat, Hit, ToolRound
from edgechat.chat.storage.query import SearchWord, all_occur, marks, parse_query, snippet
from edgechat.chat.storage.rows import CHAT, CHAT_OF_C, N_CHAT, attachments_of, chat_of, rounds_of

_RANKED = 2000
"""How many of the matching turns, the newest, are ranked: a rank costs a microsecond."""
_MOST_TITLES = 10
_TEXTS = ("t.content", "t.attachments", "t.rounds")
_IN_TURN = "(" + " OR ".join(f"{text} LIKE ? ESCAPE '~'" for text in _TEXTS) + ")"


def search(db: sqlite3.Connection, text: str, limit: int = 50, chat_id: str | None = None) -> list[Hit]:
    """Return where all the words of `text` are (see `query`), in one chat or in all.

    Chats whose titles have them come first, then the best turns by BM25, of equals the newest.
    """
    words = parse_query(text)
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
        values += [like] * len(_TEXTS)
    if chat_id is not None:
        wheres.append("t.conversation_id = ?")
        values.append(chat_id)
    where, chat = " AND ".join(wheres), "conversations c ON c.id = t.conversation_id"
    if match:
        between, bounds = _bounds(db, chat_id)
        matches = (
            "SELECT t.number AS number, bm25(said, 1.0, 0.5) AS score FROM said "
            f"CROSS JOIN turns t ON t.number = said.rowid CROSS JOIN {chat} "
            f"WHERE said MATCH ? {between} AND {where} ORDER BY said.rowid DESC LIMIT {_RANKED}"
        )
        values = [match, *bounds, *values]
    else:
        matches = (
            f"SELECT t.number AS number, 0 AS score FROM turns t CROSS JOIN {chat} "
            f"WHERE t.number IS NOT NULL AND {where} ORDER BY t.number DESC LIMIT {int(limit)}"
        )
    return db.execute(
        f"SELECT {CHAT_OF_C}, t.id, t.role, t.created_at, {', '.join(_TEXTS)} FROM ({matches}) f "
        f"JOIN turns t ON t.number = f.number JOIN {chat} "
        f"ORDER BY f.score, f.number DESC LIMIT {int(limit)}",
        values,
    )


def _bounds(db: sqlite3.Connection, chat_id: str | None) -> tuple[str, list[Any]]:
    # The index has only numbers; a chat's are within these bounds, those of others among them.
    if chat_id is None:
        return "", []
    span = "SELECT min(number), max(number) FROM turns WHERE conversation_id = ?"
    return "AND said.rowid BETWEEN ? AND ?", list(db.execute(span, (chat_id,)).fetchone())


def _hit(row: tuple[Any, ...], words: list[SearchWord]) -> Hit:
    turn_id, role, created_at, content, attached, rounds = row[N_CHAT:]
    best = snippet(content, words)
    if best.n_words < len(words):
        files = [f"{file.name}: {file.text}" for file in attachments_of(attached)]
        snippets = (snippet(text, words) for text in (*files, *_texts_of(rounds_of(rounds))))
        best = max(best, *snippets, key=lambda candidate: candidate.n_words)
    chat = chat_of(row[:N_CHAT])
    return Hit(
        chat=chat, turn_id=turn_id, role=role, created_at=created_at, snippet=best.text, marks=best.marks
    )


def _texts_of(rounds: Iterable[ToolRound]) -> Iterator[str]:
    for part in rounds:
        yield part.content
        for use in part.uses:
            yield f"{use.tool} {use.arguments}: {use.result}"


def _titled(db: sqlite3.Connection, words: list[SearchWord]) -> list[Chat]:
    """Return the chats whose titles have the words, those used last first."""
    kept = "FROM conversations WHERE trashed_at IS NULL"
    titles = db.execute(f"SELECT id, title {kept} ORDER BY updated_at DESC")
    ids = [chat_id for chat_id, title in titles if all_occur(words, title)][:_MOST_TITLES]
    places = ", ".join("?" * len(ids))
    rows = db.execute(f"SELECT {CHAT} {kept} AND id IN ({places}) ORDER BY updated_at DESC", ids)
    return [chat_of(row) for row in rows]


def _title_hit(chat: Chat, words: list[SearchWord]) -> Hit:
    line = one_line(chat.title)
    spans = marks(line, words)
    return Hit(chat=chat, turn_id="", role="user", created_at=chat.updated_at, snippet=line, marks=spans)
