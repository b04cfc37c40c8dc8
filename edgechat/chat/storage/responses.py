"""The SQL for the server's stored responses; each function that writes is one transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

import msgspec

from edgechat.base.errors import PromptTooLong, ResponseNotFound
from edgechat.chat.storage.file import truncate_wal

DAYS = 30
"""Number of days for which a response is kept after it was stored or last continued."""
MOST_RESPONSES, MOST_BYTES = 1000, 64 * 2**20
CHAIN_ITEMS, CHAIN_BYTES = 8192, 8 * 2**20
"""Limits on the stored items that a request refers to; the items that it contains have the same limits."""

_CHAIN = """WITH RECURSIVE chain (id, previous_id, n) AS (
    SELECT id, previous_id, 1 FROM responses WHERE id = ?
    UNION ALL
    SELECT r.id, r.previous_id, n + 1 FROM chain c JOIN responses r ON r.id = c.previous_id WHERE n < ?
)"""
_TOO_MANY = """SELECT id FROM (
    SELECT id, used_at, row_number() OVER latest AS n, sum(size) OVER latest AS total FROM responses
    WINDOW latest AS (ORDER BY used_at DESC, created_at DESC ROWS UNBOUNDED PRECEDING)
) WHERE used_at < ? OR n > ? OR (total > ? AND n > 1)"""


class StoredItem(msgspec.Struct, frozen=True):
    """An item of a conversation, as JSON that also contains its id."""

    id: str
    item: bytes


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response with its own input, but not the input of the responses that it continues."""

    id: str
    previous_id: str | None
    model: str
    created_at: float
    body: bytes
    """The JSON of the response, without its output."""
    input: tuple[StoredItem, ...]
    output: tuple[StoredItem, ...]


def keep(db: sqlite3.Connection, response: StoredResponse) -> None:
    """Store a response, mark the ones it continues as used, and delete the oldest ones beyond the limits."""
    now, items = time.time(), (*response.input, *response.output)
    size = len(response.body) + sum(len(one.item) for one in items)
    row = (response.id, response.previous_id, response.model, response.created_at, now, size, response.body)
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "INSERT INTO responses (id, previous_id, model, created_at, used_at, size, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            row,
        )
        db.executemany(
            "INSERT INTO response_items (response_id, position, id, is_output, item) VALUES (?, ?, ?, ?, ?)",
            (
                (response.id, position, one.id, position >= len(response.input), one.item)
                for position, one in enumerate(items)
            ),
        )
        # Using a response renews the whole chain that it continues, so that the chain stays complete.
        db.execute(
            f"{_CHAIN} UPDATE responses SET used_at = ? WHERE id IN (SELECT id FROM chain)",
            (response.id, MOST_RESPONSES, now),
        )
        n_deleted = _delete_those_too_many(db)
    if n_deleted:
        truncate_wal(db)


def prune(db: sqlite3.Connection) -> None:
    """Delete the responses that are too old or beyond the limits."""
    if _those_too_many(db):  # usually there are none, and no lock is needed
        with db:
            db.execute("BEGIN IMMEDIATE")
            n_deleted = _delete_those_too_many(db)
        if n_deleted:
            truncate_wal(db)


def delete(db: sqlite3.Connection, response_id: str) -> bool:
    """Delete a response; return False if there is none with this id."""
    n_deleted = db.execute("DELETE FROM responses WHERE id = ?", (response_id,)).rowcount
    if n_deleted:
        truncate_wal(db)
    return n_deleted > 0


def body(db: sqlite3.Connection, response_id: str) -> tuple[bytes, list[bytes]]:
    """Return a response without its output, and the output items. Raises ResponseNotFound."""
    with db:
        db.execute("BEGIN")
        row = db.execute("SELECT body FROM responses WHERE id = ?", (response_id,)).fetchone()
        if row is None:
            raise ResponseNotFound(response_id)
        return row[0], [one.item for one in _items(db, response_id, is_output=True)]


def input_items(db: sqlite3.Connection, response_id: str) -> list[StoredItem]:
    """Return a response's own input. Raises ResponseNotFound."""
    with db:
        db.execute("BEGIN")
        if db.execute("SELECT 1 FROM responses WHERE id = ?", (response_id,)).fetchone() is None:
            raise ResponseNotFound(response_id)
        return _items(db, response_id, is_output=False)


def chain(db: sqlite3.Connection, response_id: str) -> list[bytes]:
    """Return the items of a response and of all responses that it continues, oldest first.

    Raises ResponseNotFound if one of the responses is missing, and PromptTooLong.
    """
    with db:
        db.execute("BEGIN")
        links: list[tuple[str, str | None]] = db.execute(
            f"{_CHAIN} SELECT id, previous_id FROM chain", (response_id, MOST_RESPONSES)
        ).fetchall()
        missing = links[-1][1] if links else response_id
        if missing is not None and len(links) < MOST_RESPONSES:
            raise ResponseNotFound(missing)
        items: list[bytes] = []
        n_bytes = 0
        for link, _ in reversed(links):
            rows = db.execute(
                "SELECT item FROM response_items WHERE response_id = ? ORDER BY position", (link,)
            )
            for (item,) in rows:
                items.append(item)
                n_bytes += len(item)
                if missing is not None or len(items) > CHAIN_ITEMS or n_bytes > CHAIN_BYTES:
                    raise too_long()
        return items


def too_long() -> PromptTooLong:
    """Return the error for a request whose stored items exceed the limits."""
    return PromptTooLong(
        f"The stored conversation has more than {MOST_RESPONSES:,} responses, {CHAIN_ITEMS:,} items or "
        f"{CHAIN_BYTES // 2**20} MiB.",
        hint="Start a new one: send the parts that are still needed as input.",
    )


def referenced(db: sqlite3.Connection, ids: Sequence[str]) -> dict[str, bytes]:
    """Return the stored items with these ids, keyed by id; the latest if several have the same id."""
    found = {}
    for item_id in dict.fromkeys(ids):
        row = db.execute(
            "SELECT item FROM response_items JOIN responses r ON r.id = response_id "
            "WHERE response_items.id = ? ORDER BY r.created_at DESC LIMIT 1",
            (item_id,),
        ).fetchone()
        if row is not None:
            found[item_id] = row[0]
    return found


def _items(db: sqlite3.Connection, response_id: str, *, is_output: bool) -> list[StoredItem]:
    rows = db.execute(
        "SELECT id, item FROM response_items WHERE response_id = ? AND is_output = ? ORDER BY position",
        (response_id, is_output),
    )
    return [StoredItem(*row) for row in rows]


def _those_too_many(db: sqlite3.Connection) -> list[tuple[str]]:
    return db.execute(_TOO_MANY, (time.time() - DAYS * 86400.0, MOST_RESPONSES, MOST_BYTES)).fetchall()


def _delete_those_too_many(db: sqlite3.Connection) -> int:
    ids = _those_too_many(db)
    db.executemany("DELETE FROM responses WHERE id = ?", ids)
    return len(ids)
