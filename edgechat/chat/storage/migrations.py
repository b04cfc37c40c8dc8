"""The schema, as a sequence of migrations.

`PRAGMA user_version` stores how many have been applied to a file. Never edit a released migration; add a new
one instead.
"""

from __future__ import annotations

import sqlite3

from edgechat.base.errors import StoreError
from edgechat.base.sqlite_file import statements_of

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


def _attached(column: str) -> str:
    """Return an SQL expression for the text in a JSON column of attachments."""
    each = "json_extract(value, '$.name') || char(10) || json_extract(value, '$.text')"
    return f"coalesce((SELECT group_concat({each}, char(10)) FROM json_each({column})), '')"


# prefix = '1': the first letter of a search matches about a tenth of all words, which would have to be merged
# without an index of first letters.
# content = '': the index stores no text, so removing a turn from it needs the text that was inserted.
# `number` is a turn's rowid in the index, because the undeclared rowid of `turns` can change. A turn gets a
# number when it is added to the index, once it is no longer streaming. System prompts are not searched.
_TAKE_NUMBER = """UPDATE turns SET number = (SELECT coalesce(max(number), 0) + 1 FROM turns)
        WHERE id = NEW.id"""
_TAKE_OUT = f"""INSERT INTO said (said, rowid, content, attached)
        VALUES ('delete', OLD.number, OLD.content, {_attached("OLD.attachments")})"""
_PUT_IN = f"""INSERT INTO said (rowid, content, attached)
        VALUES (NEW.number, NEW.content, {_attached("NEW.attachments")})"""

_SEARCH = f"""
ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN settings TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE conversations ADD COLUMN leaf TEXT;
ALTER TABLE conversations ADD COLUMN trashed_at REAL;
ALTER TABLE turns ADD COLUMN attachments TEXT;
ALTER TABLE turns ADD COLUMN number INTEGER;
UPDATE turns SET number = rowid WHERE state != 'streaming' AND role != 'system';
CREATE UNIQUE INDEX turns_by_number ON turns (number);
CREATE INDEX turns_by_parent ON turns (parent_id);
CREATE INDEX conversations_as_listed ON conversations (pinned DESC, updated_at DESC);

CREATE VIRTUAL TABLE said USING fts5 (
    content, attached, content = '', prefix = '1', tokenize = 'unicode61 remove_diacritics 2'
);
INSERT INTO said (rowid, content, attached) SELECT number, content, '' FROM turns WHERE number IS NOT NULL;

CREATE TRIGGER turn_was_written AFTER INSERT ON turns
    WHEN NEW.state != 'streaming' AND NEW.role != 'system' BEGIN
        {_TAKE_NUMBER};
    END;
CREATE TRIGGER turn_has_ended AFTER UPDATE OF state ON turns
    WHEN NEW.state != 'streaming' AND NEW.role != 'system' AND NEW.number IS NULL BEGIN
        {_TAKE_NUMBER};
    END;
CREATE TRIGGER turn_got_its_number AFTER UPDATE OF number ON turns
    WHEN OLD.number IS NULL AND NEW.number IS NOT NULL BEGIN
        {_PUT_IN};
    END;
CREATE TRIGGER turn_was_changed AFTER UPDATE OF content, attachments ON turns
    WHEN OLD.number IS NOT NULL AND OLD.number IS NEW.number
        AND (OLD.content IS NOT NEW.content OR OLD.attachments IS NOT NEW.attachments) BEGIN
        {_TAKE_OUT};
        {_PUT_IN};
    END;
CREATE TRIGGER turn_was_deleted AFTER DELETE ON turns
    WHEN OLD.number IS NOT NULL BEGIN
        {_TAKE_OUT};
    END;
"""

# A row belongs either to a chat, and is deleted with it, or to a program's new conversation, which is not
# stored yet.
_UNSENT = """
CREATE TABLE unsent (
    conversation_id TEXT UNIQUE REFERENCES conversations (id) ON DELETE CASCADE,
    owner           TEXT UNIQUE,
    value           TEXT NOT NULL,
    updated_at      REAL NOT NULL,
    CHECK ((conversation_id IS NULL) != (owner IS NULL))
);
"""

# Responses stored by `edgechat serve --store-responses`, and their items as JSON, in conversation order.
# The body is the response without its output. Item ids are not unique: clients send items again.
_RESPONSES = """
CREATE TABLE responses (
    id          TEXT PRIMARY KEY,
    previous_id TEXT,
    model       TEXT NOT NULL,
    created_at  REAL NOT NULL,
    used_at     REAL NOT NULL,
    size        INTEGER NOT NULL,
    body        BLOB NOT NULL
);
CREATE INDEX responses_by_use ON responses (used_at);

CREATE TABLE response_items (
    response_id TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
    position    INTEGER NOT NULL,
    id          TEXT NOT NULL,
    is_output   INTEGER NOT NULL,
    item        BLOB NOT NULL,
    PRIMARY KEY (response_id, position)
);
CREATE INDEX response_items_by_id ON response_items (id);
"""

# The image files are next to the database and named after their digests, because several turns may share one.
_IMAGES = """
CREATE TABLE turn_images (
    turn_id  TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    digest   TEXT NOT NULL,
    name     TEXT NOT NULL,
    width    INTEGER NOT NULL,
    height   INTEGER NOT NULL,
    PRIMARY KEY (turn_id, position)
);
CREATE INDEX turn_images_by_digest ON turn_images (digest);
"""


def _indexed(row: str) -> str:
    """Return an SQL expression for all indexed parts of a turn except its content.

    For turns without calls, it yields the same text as `_SEARCH` does, because removing text from the index
    requires exactly the text that was inserted.
    """
    column = f"{row}.rounds"
    texts = (
        "SELECT char(10) || group_concat(atom, char(10)) "
        f"FROM json_tree(iif(json_valid({column}), {column}, '[]')) "
        "WHERE type = 'text' AND key IN ('content', 'tool', 'arguments', 'result')"
    )
    return f"{_attached(f'{row}.attachments')} || coalesce(({texts}), '')"


_TAKE_OUT_CALLS = f"""INSERT INTO said (said, rowid, content, attached)
        VALUES ('delete', OLD.number, OLD.content, {_indexed("OLD")})"""
_PUT_IN_CALLS = f"""INSERT INTO said (rowid, content, attached)
        VALUES (NEW.number, NEW.content, {_indexed("NEW")})"""

# The parts of a reply that called tools, as JSON; they are searched like attachments.
_ROUNDS = f"""
ALTER TABLE turns ADD COLUMN rounds TEXT;
DROP TRIGGER turn_got_its_number;
DROP TRIGGER turn_was_changed;
DROP TRIGGER turn_was_deleted;

CREATE TRIGGER turn_got_its_number AFTER UPDATE OF number ON turns
    WHEN OLD.number IS NULL AND NEW.number IS NOT NULL BEGIN
        {_PUT_IN_CALLS};
    END;
CREATE TRIGGER turn_was_changed AFTER UPDATE OF content, attachments, rounds ON turns
    WHEN OLD.number IS NOT NULL AND OLD.number IS NEW.number
        AND (OLD.content IS NOT NEW.content OR OLD.attachments IS NOT NEW.attachments
             OR OLD.rounds IS NOT NEW.rounds) BEGIN
        {_TAKE_OUT_CALLS};
        {_PUT_IN_CALLS};
    END;
CREATE TRIGGER turn_was_deleted AFTER DELETE ON turns
    WHEN OLD.number IS NOT NULL BEGIN
        {_TAKE_OUT_CALLS};
    END;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _FRONTS, _SEARCH, _UNSENT, _RESPONSES, _IMAGES, _ROUNDS)


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the file to the newest schema. Raises StoreError if it is newer than this program."""
    if _version(connection) == len(MIGRATIONS):
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        # Read again inside the transaction: another program may have migrated it in between.
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise StoreError(
                f"The conversations were last used by a newer edgechat (schema {version}; this version "
                f"supports {len(MIGRATIONS)}).",
                hint="Update edgechat: pip install --upgrade edgechat",
            )
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            for statement in statements_of(script):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
