"""Collection of documents: files, their passages and a full-text index, in one SQLite file.

Each file is written in a single transaction, so that it is stored completely or not at all, even if the
process is killed. A collection belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from edgechat.base.errors import DocumentError, DocumentsUnwritable
from edgechat.base.sqlite_file import open_read_only, remedy, statements_of, why_unwritable
from edgechat.base.text import flat, one_line
from edgechat.documents.passages import Passage

_VERSION = 3
_BUSY_SECONDS = 10.0
MOST_NAMES = 3
"""Number of file names to store as examples of files that are skipped because of their kind."""
UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese and Japanese characters, which are written without spaces, as ranges for a regular expression."""
_UNSPACED = re.compile(f"[{UNSPACED}]")
# The index does not store the text (content = 'searched'), so triggers tell it what is removed. Porter
# stemming strips English endings. It does little harm to other languages, since it is applied to questions as
# well.
_SCHEMA = """
CREATE TABLE roots (
    path TEXT PRIMARY KEY, device TEXT NOT NULL DEFAULT '', others TEXT NOT NULL DEFAULT '{}'
) WITHOUT ROWID;
CREATE TABLE files (
    id        INTEGER PRIMARY KEY,
    root      TEXT NOT NULL REFERENCES roots (path) ON DELETE CASCADE,
    path      TEXT NOT NULL,
    size      INTEGER NOT NULL,
    changed   INTEGER NOT NULL,
    digest    TEXT NOT NULL,
    unit      TEXT NOT NULL,
    starts    TEXT NOT NULL,
    n_bytes   INTEGER NOT NULL,
    note      TEXT NOT NULL,
    UNIQUE (root, path)
);
CREATE TABLE passages (
    id      INTEGER PRIMARY KEY,
    file    INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    section INTEGER NOT NULL,
    start   INTEGER NOT NULL,
    stop    INTEGER NOT NULL,
    heading TEXT NOT NULL,
    text    TEXT NOT NULL
);
CREATE INDEX passages_by_file ON passages (file, id);
CREATE TABLE vectors (
    passage INTEGER PRIMARY KEY REFERENCES passages (id) ON DELETE CASCADE,
    model   TEXT NOT NULL,
    vector  BLOB NOT NULL
);
CREATE VIEW searched AS SELECT id, spaced(heading) AS heading, spaced(text) AS text FROM passages;
CREATE VIRTUAL TABLE words USING fts5 (
    heading, text, content = 'searched', content_rowid = 'id',
    tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN
    INSERT INTO words (rowid, heading, text) VALUES (NEW.id, spaced(NEW.heading), spaced(NEW.text));
END;
CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN
    INSERT INTO words (words, rowid, heading, text)
        VALUES ('delete', OLD.id, spaced(OLD.heading), spaced(OLD.text));
END;
"""
_FROM_2 = "ALTER TABLE roots ADD COLUMN others TEXT NOT NULL DEFAULT '{}';"
_FROM_1 = f"ALTER TABLE roots ADD COLUMN device TEXT NOT NULL DEFAULT '';\n{_FROM_2}"


class OtherFiles(msgspec.Struct, frozen=True):
    """The files in a folder that are skipped because of their kind."""

    count: int = 0
    names: tuple[str, ...] = ()
    """The first few names, formatted like `File.name`."""

    def __bool__(self) -> bool:
        return self.count > 0

    def __add__(self, more: OtherFiles) -> OtherFiles:
        return OtherFiles(self.count + more.count, (self.names + more.names)[:MOST_NAMES])

    @property
    def about(self) -> str:
        """A message for the user about these files, if there are any."""
        if self.count == 1:
            return f"1 file is of a kind that is not read: {self.names[0]}"
        return f"{self.count:,} files are of kinds that are not read: {listed(self.names, self.count)}"


def listed(names: Sequence[str], count: int) -> str:
    """Return a list of names on one line. names: the first few of `count` names."""
    rest = f" and {count - len(names):,} more" if count > len(names) else ""
    return f"{', '.join(names)}{rest}"


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """A folder or file that the user has added."""

    path: str
    device: str
    """The device it was on (st_dev) when last read; '' if it has never been read."""
    files: int
    """Number of files with text when it was last read."""
    is_file: bool
    others: OtherFiles = OtherFiles()

    @property
    def away(self) -> str:
        """The message shown while it is unavailable."""
        if not self.files:
            return f"{flat(self.path)} is currently unavailable."
        files = f"{self.files:,} files are" if self.files > 1 else "1 file is"
        return f"{flat(self.path)} is currently unavailable; its {files} searched as last indexed."


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a collection."""

    root: str
    """The folder that the user added, or this file itself."""
    path: str
    """Relative to the root, with forward slashes; '' if it is the root."""
    size: int
    changed: int
    """Time of its last modification, in nanoseconds."""
    digest: str = ""
    """SHA-256 of its bytes, in hexadecimal; '' if it could not be read and should be retried."""
    unit: str = "line"
    """The unit used to describe places in it: line, page, chapter, cell, paragraph or row."""
    starts: tuple[int, ...] = ()
    """Line number at which each page, chapter or cell starts."""
    n_bytes: int = 0
    """Size of its text in bytes of UTF-8."""
    note: str = ""
    """Why all or part of it is missing from the collection; '' if nothing is missing."""
    id: int = 0

    @property
    def location(self) -> Path:
        """Its path on disk."""
        return Path(self.root, self.path) if self.path else Path(self.root)

    @property
    def name(self) -> str:
        """Its name for the user: its path, starting with the name of the folder that was added."""
        return flat("/".join(filter(None, (Path(self.root).name, self.path))))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A passage in a collection."""

    id: int
    file: File
    section: int
    start: int
    end: int
    heading: str
    text: str


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a collection."""

    files: int
    """Number of files with text."""
    passages: int
    n_bytes: int
    """Size of that text in bytes of UTF-8."""
    embedded: int
    """Number of passages with a vector."""


_FILE = "root, path, size, changed, digest, unit, starts, n_bytes, note, id"
_PASSAGE = "id, file, section, start, stop, heading, text"


class Collection:
    """An open collection. Its methods raise DocumentError if its file cannot be used."""

    def __init__(self, path: Path, name: str) -> None:
        """Open or create the collection's file. `edgechat.documents.registry` determines the path.

        If the file cannot be written to, for example because the disk is full, it can still be read.
        """
        self.name = name
        self.path = path
        self._unwritable: str | None = None
        """Why the file cannot be written to, or None."""
        with self._translated():
            try:
                self._open(self._connect)
            except (sqlite3.Error, OSError) as error:
                self._unwritable = why_unwritable(path, error)
                if self._unwritable is None or not path.exists():
                    raise
                self._open(self._connect_to_read)
            self._inode = path.stat().st_ino

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))  # only its owner can read it
        return sqlite3.connect(
            self.path, isolation_level=None, check_same_thread=False, timeout=_BUSY_SECONDS
        )

    def _connect_to_read(self) -> sqlite3.Connection:
        """Return a read-only connection, or one to an in-memory copy if the schema must be migrated first."""
        db = open_read_only(self.path, seconds=_BUSY_SECONDS)
        if db.execute("PRAGMA user_version").fetchone() == (_VERSION,):
            return db
        with contextlib.closing(db):
            copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            db.backup(copy)
        return copy

    def _open(self, connect: Callable[[], sqlite3.Connection]) -> None:
        with contextlib.ExitStack() as undo:
            self._db = connect()
            undo.callback(self._db.close)
            self._db.create_function("spaced", 1, _spaced, deterministic=True)
            if self._unwritable is None:
                self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")  # files lost in a power cut are read again
            self._db.execute("PRAGMA foreign_keys = ON")
            self._create()
            self._db.execute(f"PRAGMA query_only = {self._unwritable is not None}")
            undo.pop_all()

    def _create(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version < _VERSION:
            with self.transaction():
                # Read again: another program may have migrated it.
                (version,) = self._db.execute("PRAGMA user_version").fetchone()
                for statement in statements_of({0: _SCHEMA, 1: _FROM_1, 2: _FROM_2}.get(version, "")):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_VERSION}")
        elif version > _VERSION:
            raise DocumentError(
                f"The collection {self.name} was indexed by a newer edgechat.", hint="Update edgechat."
            )

    @property
    def is_there(self) -> bool:
        """Whether the path still refers to the file that was opened."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all changes made in the `with` block, or none of them."""
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite ends it when the disk is full
                    with contextlib.suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            why = self._unwritable or why_unwritable(self.path, error)
            if why is not None:
                raise DocumentsUnwritable(
                    f"The collection {self.name} cannot be written: {why}.",
                    hint=remedy(why),
                ) from error
            what = one_line(str(error), 120)
            raise DocumentError(
                f"The collection {self.name} cannot be read: {what}.",
                hint=f"To index them again: edgechat docs rm {self.name}, then edgechat docs add …",
            ) from error

    # Files.

    def roots(self) -> list[Root]:
        """Return the folders and files that the user has added, sorted."""
        with self._translated():
            rows = self._db.execute(
                "SELECT r.path, r.device, r.others, count(f.id) FILTER (WHERE f.n_bytes > 0), "
                "max(f.path = '') FROM roots r LEFT JOIN files f ON f.root = r.path "
                "GROUP BY r.path ORDER BY r.path"
            ).fetchall()
        return [
            Root(
                path=path,
                device=device,
                files=files,
                is_file=bool(is_file),
                others=msgspec.json.decode(others, type=OtherFiles),
            )
            for path, device, others, files, is_file in rows
        ]

    def add_root(self, path: str) -> None:
        """Add a folder or file by its absolute path, without reading it yet."""
        with self.transaction():
            self._db.execute("INSERT OR IGNORE INTO roots (path) VALUES (?)", (path,))

    def put_device(self, path: str, device: str) -> None:
        """Store a root's device."""
        with self.transaction():
            self._db.execute("UPDATE roots SET device = ? WHERE path = ?", (device, path))

    def put_others(self, path: str, others: OtherFiles) -> None:
        """Record which files under a root are skipped because of their kind."""
        with self.transaction():
            values = (msgspec.json.encode(others).decode(), path)
            self._db.execute("UPDATE roots SET others = ? WHERE path = ?", values)

    def remove_root(self, path: str) -> None:
        """Remove a root along with its files and passages."""
        with self.transaction():
            self._db.execute("DELETE FROM roots WHERE path = ?", (path,))

    def files(self) -> list[File]:
        """Return all files, including unreadable ones, sorted by name."""
        with self._translated():
            rows = self._db.execute(f"SELECT {_FILE} FROM files ORDER BY root, path").fetchall()
        return [_file(row) for row in rows]

    def left_out(self) -> list[File]:
        """Return the files that were not read in full (see `File.note`), sorted by name."""
        with self._translated():
            query = f"SELECT {_FILE} FROM files WHERE note != '' ORDER BY root, path"
            return [_file(row) for row in self._db.execute(query)]

    def put(self, file: File, passages: Iterable[Passage] = ()) -> None:
        """Store a file with its passages, replacing whatever was stored for it."""
        with self.transaction():
            self._delete(file.root, file.path)
            cursor = self._db.execute(
                "INSERT INTO files (root, path, size, changed, digest, unit, starts, n_bytes, note) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    file.root,
                    file.path,
                    file.size,
                    file.changed,
                    file.digest,
                    file.unit,
                    msgspec.json.encode(file.starts).decode(),
                    file.n_bytes,
                    file.note,
                ),
            )
            self._db.executemany(
                "INSERT INTO passages (file, section, start, stop, heading, text) VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (cursor.lastrowid, one.section, one.start, one.end, one.heading, one.text)
                    for one in passages
                ),
            )

    def touch(self, file: File) -> None:
        """Store the size and modification time of a file whose content is unchanged."""
        with self.transaction():
            self._db.execute(
                "UPDATE files SET size = ?, changed = ? WHERE root = ? AND path = ?",
                (file.size, file.changed, file.root, file.path),
            )

    def remove(self, files: Iterable[File]) -> None:
        """Remove files along with their passages."""
        with self.transaction():
            for file in files:
                self._delete(file.root, file.path)

    def _delete(self, root: str, path: str) -> None:
        self._db.execute("DELETE FROM files WHERE root = ? AND path = ?", (root, path))

    def counts(self) -> Counts:
        """Return the size of the collection."""
        with self._translated():
            files, n_bytes = self._db.execute(
                "SELECT count(*), coalesce(sum(n_bytes), 0) FROM files WHERE n_bytes > 0"
            ).fetchone()
            (embedded,) = self._db.execute("SELECT count(*) FROM vectors").fetchone()
        return Counts(files=files, passages=self.n_passages(), n_bytes=n_bytes, embedded=embedded)

    # Passages.

    def n_passages(self) -> int:
        """Return the number of passages."""
        with self._translated():
            return int(self._db.execute("SELECT count(*) FROM passages").fetchone()[0])

    def passages(self, ids: Sequence[int]) -> list[Found]:
        """Return the passages with these ids in the same order, skipping those that no longer exist."""
        with self._translated():
            rows = self._db.execute(
                f"SELECT {_PASSAGE} FROM passages WHERE id IN (SELECT value FROM json_each(?))",
                (msgspec.json.encode(ids).decode(),),
            ).fetchall()
            files = self._db.execute(
                f"SELECT {_FILE} FROM files WHERE id IN (SELECT value FROM json_each(?))",
                (msgspec.json.encode({row[1] for row in rows}).decode(),),
            ).fetchall()
        by_id = {file.id: file for file in map(_file, files)}
        found = {row[0]: _found(row, by_id[row[1]]) for row in rows if row[1] in by_id}
        return [found[one] for one in ids if one in found]

    def section(self, found: Found, most: int) -> list[Found]:
        """Return all passages in the section of `found`, in order; [] if they exceed `most` characters."""
        where, values = "WHERE file = ? AND section = ?", (found.file.id, found.section)
        with self._translated():
            (letters,) = self._db.execute(
                f"SELECT coalesce(sum(length(text)), 0) FROM passages {where}", values
            ).fetchone()
        return self._passages_of(found.file, where, values) if letters <= most else []

    def document(self, file: File) -> list[Found]:
        """Return all passages in a file, in order."""
        return self._passages_of(file, "WHERE file = ?", (file.id,))

    def _passages_of(self, file: File, where: str, values: Sequence[int]) -> list[Found]:
        with self._translated():
            rows = self._db.execute(f"SELECT {_PASSAGE} FROM passages {where} ORDER BY id", values).fetchall()
        return [_found(row, file) for row in rows]

    def by_words(self, match: str, limit: int) -> list[int]:
        """Return the ids of passages that match an FTS5 expression, ranked by BM25, best first."""
        with self._translated():
            rows = self._db.execute(
                "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words, 2.0, 1.0) LIMIT ?",
                (match, limit),
            )
            return [number for (number,) in rows]

    def count_up_to(self, match: str, most: int) -> int:
        """Count the passages that match an FTS5 expression, up to `most`."""
        with self._translated():
            (count,) = self._db.execute(
                "SELECT count(*) FROM (SELECT rowid FROM words WHERE words MATCH ? LIMIT ?)", (match, most)
            ).fetchone()
        return int(count)

    # Vectors.

    def without_vector(self, model: str, limit: int, after: int = 0) -> list[tuple[int, str]]:
        """Return the ids and texts, including headings, of passages that have no vector from a model.

        Only ids above `after` are searched, so that passages with a vector are not scanned on every call.
        """
        with self._translated():
            rows = self._db.execute(
                "SELECT p.id, p.heading, p.text FROM passages p LEFT JOIN vectors v "
                "ON v.passage = p.id AND v.model = ? WHERE v.passage IS NULL AND p.id > ? "
                "ORDER BY p.id LIMIT ?",
                (model, after, limit),
            ).fetchall()
        return [(number, f"{heading}\n{text}" if heading else text) for number, heading, text in rows]

    def count_without_vector(self, model: str) -> int:
        """Return the number of passages that have no vector from a model."""
        with self._translated():
            (count,) = self._db.execute(
                "SELECT count(*) FROM passages p LEFT JOIN vectors v "
                "ON v.passage = p.id AND v.model = ? WHERE v.passage IS NULL",
                (model,),
            ).fetchone()
        return int(count)

    def put_vectors(self, model: str, vectors: Iterable[tuple[int, bytes]]) -> None:
        """Store vectors keyed by passage id, skipping passages that no longer exist."""
        with self.transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO vectors (passage, model, vector) "
                "SELECT id, ?, ? FROM passages WHERE id = ?",
                ((model, vector, number) for number, vector in vectors),
            )

    def vectors(self, model: str) -> tuple[list[int], bytes]:
        """Return the ids of all passages with a vector from a model, and their concatenated vectors."""
        with self._translated():
            rows = self._db.execute(
                "SELECT passage, vector FROM vectors WHERE model = ? ORDER BY passage", (model,)
            ).fetchall()
        return [number for number, _ in rows], b"".join(vector for _, vector in rows)

    def change(self) -> int:
        """Return a number that changes whenever any program modifies the file."""
        with self._translated():
            (version,) = self._db.execute("PRAGMA data_version").fetchone()
        return int(version) * 2**32 + self._db.total_changes


def _spaced(text: str) -> str:
    """Return text for the index, with each character in `UNSPACED` turned into a separate word."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


def _file(row: Sequence[object]) -> File:
    values = dict(zip(File.__struct_fields__, row, strict=True))
    values["starts"] = tuple(msgspec.json.decode(str(values["starts"]), type=tuple[int, ...]))
    return msgspec.convert(values, File)


def _found(row: tuple[int, int, int, int, int, str, str], file: File) -> Found:
    number, _, section, start, end, heading, text = row
    return Found(id=number, file=file, section=section, start=start, end=end, heading=heading, text=text)
