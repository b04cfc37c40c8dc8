"""The schema, as the ordered steps that lead to it.

`PRAGMA user_version` counts the steps a file has taken. A step that has been released is never edited:
append another one.
"""

from __future__ import annotations

import sqlite3

from edgechat.errors import StoreError

_FIRST = """
CREATE TABLE conversations (
    id          TEXT PRIMARY KEY,
    title       TEXT NOT NULL,
    model       TEXT NOT NULL,
    date        TEXT NOT NULL,
    created_at  REAL NOT NULL,
    updated_at  REAL NOT NULL
);
CREATE INDEX conversations_by_time ON conversations (updated_at DESC);

CREATE TABLE turns (
    id              TEXT PRIMARY KEY,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    parent_id       TEXT REFERENCES turns (id) ON DELETE CASCADE,
    position        INTEGER NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    content         TEXT NOT NULL,
    thinking        TEXT NOT NULL DEFAULT '',
    state           TEXT NOT NULL
                    CHECK (state IN ('complete', 'streaming', 'stopped', 'interrupted', 'failed')),
    created_at      REAL NOT NULL,
    updated_at      REAL NOT NULL,
    figures         TEXT,
    error           TEXT,
    owner           TEXT,
    UNIQUE (conversation_id, position)
);
CREATE INDEX turns_streaming ON turns (state) WHERE state = 'streaming';

CREATE TABLE preferences (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
"""

_FRONTS = "ALTER TABLE conversations ADD COLUMN front TEXT NOT NULL DEFAULT 'app'"

MIGRATIONS: tuple[str, ...] = (_FIRST, _FRONTS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest schema; raise StoreError where it is newer than this program."""
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _take_missing_steps(connection)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _take_missing_steps(connection: sqlite3.Connection) -> None:
    # Read again inside the transaction: another program may have migrated in between.
    version = _version(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"The conversations were last used by a newer edgechat (schema {version}, this one knows "
            f"{len(MIGRATIONS)}).",
            hint="Update edgechat: pip install --upgrade edgechat",
        )
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        for statement in script.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
