"""The SQL for chats, turns, preferences and unsent text; each function that writes is one transaction."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections import defaultdict
from collections.abc import Sequence

from edgechat.base.process.owner import Owner, alive
from edgechat.base.text import one_line
from edgechat.chat.records import AttachedImage, Chat, ChatSettings, Front, Headline, Listed, Turn
from edgechat.chat.storage.file import deleted_meanwhile, truncate_wal
from edgechat.chat.storage.rows import (
    CHAT,
    CHAT_MARKS,
    CHAT_OF_C,
    TURN,
    as_json,
    chat_of,
    chat_values,
    owner_of,
    turn_of,
    turn_values,
)

_SHORTEST = 8
"""Minimum length of an id prefix in a list."""


def insert_turn(
    db: sqlite3.Connection,
    turn: Turn,
    owner: Owner | None,
    chat: Chat | None,
    system: Turn | None,
    branch: bool,
) -> bool:
    """Append a turn, first inserting the chat that it starts and that chat's system prompt, if given.

    For a question, returns False without writing if another question already follows its parent, or if a
    running program is still writing the parent or a reply to it; `branch` skips this check. Raises StoreError
    if the chat was deleted.
    """
    with db:
        db.execute("BEGIN IMMEDIATE")
        if turn.role == "user" and not branch and _is_taken(db, turn.parent_id):
            return False
        if chat is not None:
            insert_chat(db, chat)
        elif _in_trash(db, turn.chat_id):
            raise deleted_meanwhile()
        if system is not None:
            _insert(db, system)
        _insert(db, turn, owner)
        # Show the branch that was written last.
        values = (time.time(), turn.chat_id)
        db.execute("UPDATE conversations SET updated_at = ?, leaf = NULL WHERE id = ?", values)
    return True


def insert_chat(db: sqlite3.Connection, chat: Chat) -> None:
    """Insert a chat's row, inside the caller's transaction."""
    db.execute(f"INSERT INTO conversations ({CHAT}) VALUES ({CHAT_MARKS})", chat_values(chat))


def insert_all(db: sqlite3.Connection, chat: Chat, turns: Sequence[Turn]) -> None:
    """Insert a chat with all its turns."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        insert_chat(db, chat)
        for turn in turns:
            _insert(db, turn)


def update_turn(db: sqlite3.Connection, turn: Turn) -> None:
    """Write the parts of a reply that can change, and remove its owner unless it is streaming."""
    now, figures, error = time.time(), as_json(turn.figures), as_json(turn.error)
    rounds = as_json(turn.rounds)
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "UPDATE turns SET content = ?, thinking = ?, rounds = ?, state = ?, figures = ?, error = ?, "
            "updated_at = ?, owner = CASE WHEN ? = 'streaming' THEN owner END WHERE id = ?",
            (turn.content, turn.thinking, rounds, turn.state, figures, error, now, turn.state, turn.id),
        )
        if turn.state != "streaming":
            db.execute("UPDATE conversations SET updated_at = ? WHERE id = ?", (now, turn.chat_id))


def resume_turn(db: sqlite3.Connection, turn: Turn, owner: Owner | None) -> bool:
    """Mark a reply as streaming, with an owner, and show its branch.

    Returns False, without writing, if its text or state has changed, or if a turn follows it. Raises
    StoreError if the chat was deleted.
    """
    with db:
        db.execute("BEGIN IMMEDIATE")
        if _in_trash(db, turn.chat_id):
            raise deleted_meanwhile()
        now = time.time()
        resumed = db.execute(
            "UPDATE turns SET state = 'streaming', error = NULL, owner = ?, updated_at = ? "
            "WHERE id = ?3 AND state = ? AND content = ? AND thinking = ? "
            "AND iif(json_valid(rounds), json_array_length(rounds), 0) = ? "
            "AND NOT EXISTS (SELECT 1 FROM turns WHERE parent_id = ?3)",
            (as_json(owner), now, turn.id, turn.state, turn.content, turn.thinking, len(turn.rounds)),
        )
        if resumed.rowcount:
            values = (now, turn.id, turn.chat_id)
            db.execute("UPDATE conversations SET updated_at = ?, leaf = ? WHERE id = ?", values)
    return resumed.rowcount > 0


def turns(db: sqlite3.Connection, chat_id: str) -> list[Turn]:
    """Return the turns on all branches of a chat, in the order they were written."""
    with db:
        db.execute("BEGIN")
        images = _images_of(db, chat_id)
        rows = db.execute(f"SELECT {TURN} FROM turns WHERE conversation_id = ? ORDER BY position", (chat_id,))
        return [turn_of(row, images[row[0]]) for row in rows]


def delete_turn(db: sqlite3.Connection, turn_id: str) -> None:
    """Delete a turn with all its descendants (through the foreign keys), and show its parent's branch."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "UPDATE conversations SET leaf = (SELECT parent_id FROM turns WHERE id = ?1) "
            "WHERE id = (SELECT conversation_id FROM turns WHERE id = ?1)",
            (turn_id,),
        )
        db.execute("DELETE FROM turns WHERE id = ?", (turn_id,))


def interrupt_orphans(db: sqlite3.Connection) -> None:
    """Mark replies left behind by dead processes as interrupted."""
    streaming = db.execute("SELECT id, owner FROM turns WHERE state = 'streaming'").fetchall()
    orphans = [(turn_id,) for turn_id, owner in streaming if not _is_written(owner)]
    if orphans:
        with db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "UPDATE turns SET state = 'interrupted', owner = NULL WHERE id = ? AND state = 'streaming'",
                orphans,
            )


def flaw(db: sqlite3.Connection) -> str | None:
    """Return the first inconsistency in the file, or None. Reads the whole file."""
    (result,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return None if result == "ok" else one_line(result)


def version(db: sqlite3.Connection) -> int:
    """Return a number that changes when another program, or another Store, writes to the file."""
    (number,) = db.execute("PRAGMA data_version").fetchone()
    return int(number)


def preference(db: sqlite3.Connection, name: str) -> str | None:
    """Return the value stored under a name, or None."""
    row = db.execute("SELECT value FROM preferences WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def set_preference(db: sqlite3.Connection, name: str, value: str) -> None:
    """Store a value under a name."""
    db.execute("INSERT OR REPLACE INTO preferences (name, value) VALUES (?, ?)", (name, value))


_LAST, _FIRST = "coalesce(max(position) + 1, 0)", "coalesce(min(position), 1) - 1"
"""SQL for the position of a turn added at the end of its chat, or at the beginning."""


def _insert(db: sqlite3.Connection, turn: Turn, owner: Owner | None = None, position: str = _LAST) -> None:
    marks = ", ".join("?" * len(turn_values(turn)))
    db.execute(
        f"INSERT INTO turns ({TURN}, owner, updated_at, position) "
        f"SELECT {marks}, ?, ?, {position} FROM turns WHERE conversation_id = ?",
        (*turn_values(turn), as_json(owner), turn.created_at, turn.chat_id),
    )
    db.executemany(
        "INSERT INTO turn_images (turn_id, position, name, digest, width, height) VALUES (?, ?, ?, ?, ?, ?)",
        ((turn.id, at, one.name, one.digest, one.width, one.height) for at, one in enumerate(turn.images)),
    )


def _images_of(db: sqlite3.Connection, chat_id: str) -> defaultdict[str, list[AttachedImage]]:
    rows = db.execute(
        "SELECT turn_id, i.name, i.digest, i.width, i.height FROM turn_images i "
        "JOIN turns t ON t.id = turn_id WHERE conversation_id = ? ORDER BY turn_id, i.position",
        (chat_id,),
    )
    images = defaultdict[str, list[AttachedImage]](list)
    for turn_id, *values in rows:
        images[turn_id].append(AttachedImage(*values))
    return images


def _is_taken(db: sqlite3.Connection, parent_id: str | None) -> bool:
    """Return whether a question follows a turn, or the turn or its reply is still being written."""
    asked = "SELECT 1 FROM turns WHERE parent_id = ? AND role = 'user' LIMIT 1"
    if db.execute(asked, (parent_id,)).fetchone() is not None:
        return True
    streaming = "SELECT owner FROM turns WHERE state = 'streaming' AND (id = ?1 OR parent_id = ?1)"
    return any(_is_written(owner) for (owner,) in db.execute(streaming, (parent_id,)).fetchall())


def _in_trash(db: sqlite3.Connection, chat_id: str) -> bool:
    trashed = "SELECT 1 FROM conversations WHERE id = ? AND trashed_at IS NOT NULL"
    return db.execute(trashed, (chat_id,)).fetchone() is not None


def _is_written(owner: str | None) -> bool:
    writer = owner_of(owner)
    return writer is not None and alive(writer)


def update_chat(db: sqlite3.Connection, /, chat_id: str, **values: object) -> None:
    """Set columns of a chat.

    Columns: title, model, front, pinned, settings, and leaf (a turn on the branch being shown).
    """
    columns = ", ".join(f"{name} = ?" for name in values)
    new = (as_json(value) if isinstance(value, ChatSettings) else value for value in values.values())
    db.execute(f"UPDATE conversations SET {columns} WHERE id = ?", (*new, chat_id))


def retitle(db: sqlite3.Connection, chat_id: str, old: str, new: str) -> bool:
    """Change the title of a chat; return False if the title is no longer `old`."""
    changed = "UPDATE conversations SET title = ? WHERE id = ? AND title = ?"
    return db.execute(changed, (new, chat_id, old)).rowcount > 0


def set_system(db: sqlite3.Connection, chat_id: str, system: Turn | None) -> None:
    """Set a chat's system prompt, or remove it if `system` is None.

    If the chat already has one, only its content is replaced.
    """
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
            _insert(db, system, position=_FIRST)
            db.execute(
                "UPDATE turns SET parent_id = ? WHERE conversation_id = ? AND parent_id IS NULL AND id != ?",
                (system.id, chat_id, system.id),
            )
        elif row is not None:
            # Detach its children, which would otherwise be deleted with it.
            db.execute("UPDATE turns SET parent_id = NULL WHERE parent_id = ?", row)
            db.execute("DELETE FROM turns WHERE id = ?", row)


def trash(db: sqlite3.Connection, chat_ids: Sequence[str]) -> None:
    """Move chats to the trash, without changing the time recorded for those already there."""
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
    """Return the ids of the chats that were moved to the trash before a given time (seconds since 1970)."""
    rows = db.execute("SELECT id FROM conversations WHERE trashed_at < ?", (before,))
    return [chat_id for (chat_id,) in rows]


def crowded_out(db: sqlite3.Connection, n_chats: int, n_bytes: int) -> list[str]:
    """Return the ids of the oldest trashed chats, which must be deleted to bring the trash within its limits.

    The most recently trashed chat is always kept.
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
    """Delete chats, with their turns and index entries; return the ids of those that existed."""
    with db:
        db.execute("BEGIN IMMEDIATE")
        deleted = [chat_id for chat_id in ids if _delete(db, chat_id, only_trashed)]
        if deleted:
            # Otherwise the words would stay in older segments of the index until they happen to be merged.
            db.execute("INSERT INTO said (said) VALUES ('optimize')")
    if deleted:
        truncate_wal(db)
    return deleted


_IN_RESULTS = (
    "SELECT tree.value FROM turns, json_tree(iif(json_valid(turns.rounds), turns.rounds, '0')) tree "
    "WHERE turns.rounds LIKE '%\"digest\"%' AND tree.key = 'digest'"
)
"""Selects the digests of the images in tool results."""


def images_of(db: sqlite3.Connection, chat_ids: Sequence[str]) -> set[str]:
    """Return the digests of the images in chats."""
    questions = "SELECT digest FROM turn_images JOIN turns t ON t.id = turn_id WHERE conversation_id = ?1"
    query = f"{questions} UNION {_IN_RESULTS} AND turns.conversation_id = ?1"
    return {digest for chat_id in chat_ids for (digest,) in db.execute(query, (chat_id,))}


def used_images(db: sqlite3.Connection) -> set[str]:
    """Return the digests of the images in all turns and in unsent text."""
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
    # Delete the last turns first: cascading deletes are limited to a depth of 1,000 turns.
    ids = db.execute("SELECT id FROM turns WHERE conversation_id = ? ORDER BY position DESC", (chat_id,))
    db.executemany("DELETE FROM turns WHERE id = ?", ids.fetchall())
    db.execute("DELETE FROM conversations WHERE id = ?", (chat_id,))
    return True


def chats(db: sqlite3.Connection, limit: int = 100, *, trashed: bool = False) -> list[Chat]:
    """Return the chats, most recently used (or most recently trashed) first."""
    order = "trashed_at DESC, updated_at DESC" if trashed else "updated_at DESC"
    return _select(db, _within(trashed), order=order, limit=limit)


def chat(db: sqlite3.Connection, chat_id: str, *, trashed: bool = False) -> Chat | None:
    """Return one chat, or None."""
    return next(iter(_select(db, f"id = ? AND {_within(trashed)}", chat_id)), None)


def latest(db: sqlite3.Connection, front: Front) -> Chat | None:
    """Return the chat used most recently in a front end, or None."""
    return next(iter(_select(db, "front = ? AND trashed_at IS NULL", front, limit=1)), None)


def beginning_with(db: sqlite3.Connection, prefix: str, *, trashed: bool | None = False) -> list[Chat]:
    """Return the chats whose ids start with a prefix, most recently used first.

    trashed: True for chats in the trash, False for the others, None for both.
    """
    return _select(db, f"substr(id, 1, ?) = ? AND {_within(trashed)}", len(prefix), prefix)


def listed(db: sqlite3.Connection, limit: int, *, trashed: bool = False) -> list[Listed]:
    """Return the chats as shown in a list, in the order of `chats`."""
    ids = sorted(chat_id for (chat_id,) in db.execute("SELECT id FROM conversations"))
    # Number of leading characters that neighboring ids have in common.
    common = [0, *itertools.starmap(_n_common, itertools.pairwise(ids)), 0]
    lengths = {name: max(_SHORTEST, 1 + max(common[at : at + 2])) for at, name in enumerate(ids)}
    return [
        Listed(chat=chat, prefix=chat.id[: lengths[chat.id]], n_messages=_n_messages(db, chat.id))
        for chat in chats(db, limit, trashed=trashed)
        if chat.id in lengths  # otherwise another program has just created it
    ]


def headlines(db: sqlite3.Connection, limit: int = 100, offset: int = 0) -> list[Headline]:
    """Return the pinned chats, then the others, each group sorted by most recent use."""
    writing = "SELECT 1 FROM turns WHERE state = 'streaming' AND conversation_id = c.id"
    rows = db.execute(
        f"SELECT {CHAT_OF_C}, EXISTS ({writing}) FROM conversations c WHERE trashed_at IS NULL "
        "ORDER BY pinned DESC, updated_at DESC LIMIT ? OFFSET ?",
        (limit, offset),
    )
    return [Headline(chat=chat_of(row[:-1]), writing=bool(row[-1])) for row in rows]


def recent_questions(db: sqlite3.Connection, limit: int = 100) -> list[str]:
    """Return the latest questions, newest first, without duplicates."""
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
    # Versions of a reply have the same parent; only the first turn of a chat has none.
    (count,) = db.execute(
        "SELECT count(DISTINCT coalesce(parent_id, '')) FROM turns "
        "WHERE conversation_id = ? AND role != 'system'",
        (chat_id,),
    ).fetchone()
    return int(count)


_UNSENT = "conversation_id IS ? AND owner IS ?"


def keep_unsent(db: sqlite3.Connection, chat_id: str | None, owner: Owner, value: str) -> None:
    """Store the unsent text in a chat, or in the owner's new conversation; '' deletes it."""
    key = _unsent_key(chat_id, owner)
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"DELETE FROM unsent WHERE {_UNSENT}", key)
        if value:
            db.execute(
                "INSERT INTO unsent (conversation_id, owner, value, updated_at) VALUES (?, ?, ?, ?)",
                (*key, value, time.time()),
            )


def unsent(db: sqlite3.Connection, chat_id: str | None, owner: Owner) -> str:
    """Return the unsent text in a chat, or in the owner's new conversation; '' if there is none."""
    row = db.execute(f"SELECT value FROM unsent WHERE {_UNSENT}", _unsent_key(chat_id, owner)).fetchone()
    return "" if row is None else str(row[0])


def take_over_unsent(db: sqlite3.Connection, owner: Owner) -> str:
    """Give the owner the newest unsent text left by a program that has ended, and return it.

    Returns '' if there is none, or if the owner already has unsent text.
    """
    with db:
        db.execute("BEGIN IMMEDIATE")
        if unsent(db, None, owner):
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


def _unsent_key(chat_id: str | None, owner: Owner) -> tuple[str | None, str | None]:
    return chat_id, as_json(owner) if chat_id is None else None
