"""Collections on the disk: index and passages agree whatever happens, and what cannot be used says so."""

import contextlib
import os
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from edgechat.base.errors import DocumentError
from edgechat.documents.collection import Collection, File
from edgechat.documents.passages import Passage
from tests import disks
from tests.documents import corpus


@pytest.fixture
def collection(tmp_path):
    opened = Collection(tmp_path / "c.db", "notes")
    yield opened
    opened.close()


def check(collection):
    """Check that the index has the words of the passages, no others, and that nothing is an orphan."""
    with sqlite3.connect(collection.path) as db:
        db.create_function("spaced", 1, lambda text: "".join(f" {c} " if c in "天気" else c for c in text))
        db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


def test_the_index_follows_the_passages(collection):
    for text in ("# One\nfirst text", "# Two\nsecond text 天気", "third"):
        corpus.put(collection, "a.md", text)
        check(collection)
    corpus.put(collection, "b.md", "fourth, in another file")
    collection.put_vectors("m", [(one.id, b"1234") for one in collection.document(collection.files()[1])])
    assert collection.counts().embedded == 1
    assert not collection.by_words('"first"', 8)
    assert len(collection.by_words('"third" OR "fourth"', 8)) == 2
    collection.remove([file for file in collection.files() if file.path == "b.md"])
    check(collection)
    assert collection.counts().embedded == 0
    collection.remove_root(corpus.ROOT)
    check(collection)
    assert (collection.files(), collection.n_passages(), collection.roots()) == ([], 0, [])
    assert not collection.by_words('"third"', 8)


def test_what_is_put_comes_back(collection, tmp_path):
    collection.add_root("/r\u202e")
    file = File(root="/r\u202e", path="a/b.pdf", size=3, changed=2**62, unit="page", starts=(1, 9), note="n")
    collection.put(file)
    (back,) = collection.files()
    assert back.location == Path("/r\u202e/a/b.pdf")
    assert "\u202e" not in back.name
    assert (back.size, back.changed, back.unit, back.starts, back.note) == (3, 2**62, "page", (1, 9), "n")
    collection.touch(File(root=file.root, path=file.path, size=4, changed=5))
    assert [(one.size, one.changed, one.note) for one in collection.files()] == [(4, 5, "n")]


def test_passages_of_a_file_share_it_and_long_sections_stay_on_the_disk(collection):
    corpus.put(collection, "a.md", "# Title\n" + "many words here\n" * 200)
    (file,) = collection.files()
    passages = collection.document(file)
    again = collection.passages([one.id for one in passages])
    assert len(again) == len(passages) > 2
    assert all(one.file is again[0].file for one in again)  # read once: that of a long PDF is large
    letters = sum(len(one.text) for one in passages)
    assert collection.section(again[0], letters) == passages
    assert collection.section(again[0], letters - 1) == []


def test_a_full_disk_is_told(collection):
    corpus.put(collection, "a.txt", "before")
    (pages,) = collection._db.execute("PRAGMA page_count").fetchone()
    collection._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    for _ in range(2):
        with pytest.raises(DocumentError, match="cannot be written: the disk is full") as failed:
            corpus.put(collection, "b.txt", "many words here\n" * 10_000)
        assert failed.value.hint == "Free some space."
    assert [one.path for one in collection.files()] == ["a.txt"]


def test_documents_are_read_on_a_read_only_disk(tmp_path):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "c.db"
    with contextlib.closing(Collection(path, "c")) as collection:
        corpus.put(collection, "a.txt", "Zebras are striped")
    with disks.read_only(path.parent), contextlib.closing(Collection(path, "c")) as collection:
        assert [one.path for one in collection.files()] == ["a.txt"]
        assert [one.text for one in collection.document(collection.files()[0])] == ["Zebras are striped"]
        with pytest.raises(DocumentError, match="c cannot be written: the disk is read-only"):
            corpus.put(collection, "b.txt", "more")
        with pytest.raises(DocumentError, match="new cannot be written: the disk is read-only"):
            Collection(path.with_name("new.db"), "new")


def test_those_of_an_older_edgechat_are_read_on_a_read_only_disk(tmp_path):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "c.db"
    with contextlib.closing(Collection(path, "c")) as collection:
        corpus.put(collection, "a.txt", "Zebras are striped")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("ALTER TABLE roots DROP COLUMN others")
        db.execute("PRAGMA user_version = 2")
    with disks.read_only(path.parent), contextlib.closing(Collection(path, "c")) as collection:
        assert [one.files for one in collection.roots()] == [1]
        with pytest.raises(DocumentError, match="c cannot be written: the disk is read-only"):
            corpus.put(collection, "b.txt", "more")


def test_documents_are_read_on_a_full_disk(small_disk):
    path = small_disk / "c.db"
    with contextlib.closing(Collection(path, "c")) as collection:
        corpus.put(collection, "a.txt", "Zebras are striped")
    disks.fill(small_disk)
    with contextlib.closing(Collection(path, "c")) as collection:
        assert [one.path for one in collection.files()] == ["a.txt"]
        with pytest.raises(DocumentError, match="c cannot be written: the disk is full"):
            corpus.put(collection, "b.txt", "more")


def _broken():
    yield Passage(1, 1, 0, "", "half of it")
    raise KeyError


def test_a_failed_transaction_leaves_nothing(collection):
    corpus.put(collection, "a.txt", "before")
    file = collection.files()[0]
    with pytest.raises(KeyError):
        collection.put(file, _broken())
    assert [one.text for one in collection.document(collection.files()[0])] == ["before"]
    check(collection)


def test_passages_come_in_the_order_asked_for(collection):
    corpus.put(collection, "a.txt", "\n\n".join("words of a paragraph " * 30 for _ in range(6)))
    ids = [one.id for one in collection.document(collection.files()[0])]
    asked = [ids[2], 10**9, ids[0]]
    assert [one.id for one in collection.passages(asked)] == [ids[2], ids[0]]


def test_two_programs_write_at_once(collection):
    other = Collection(collection.path, "notes")
    change = collection.change()
    for number in range(9):
        corpus.put(collection if number % 2 else other, f"{number}.txt", f"text number{number}")
    assert collection.change() != change
    assert len(collection.files()) == len(other.files()) == 9
    collection.put_vectors("m", [(10**6, b"gone")])
    assert collection.counts().embedded == 0
    other.close()
    check(collection)


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX")
def test_only_its_owner_reads_it(collection):
    assert stat.S_IMODE(os.stat(collection.path).st_mode) == 0o600


def test_of_a_newer_edgechat(tmp_path):
    path = tmp_path / "new.db"
    Collection(path, "new").close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(DocumentError, match="newer edgechat") as failed:
        Collection(path, "new")
    assert failed.value.hint == "Update edgechat."


def test_of_an_older_edgechat(tmp_path):
    path = tmp_path / "old.db"
    old = Collection(path, "old")
    corpus.put(old, "a.md", "words")
    old.close()
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE roots DROP COLUMN device")
        db.execute("ALTER TABLE roots DROP COLUMN others")
        db.execute("PRAGMA user_version = 1")
    db.close()
    opened = Collection(path, "old")
    assert [(root.path, root.device, root.files) for root in opened.roots()] == [(corpus.ROOT, "", 1)]
    opened.put_device(corpus.ROOT, "7")
    opened.close()
    again = Collection(path, "old")
    assert [root.device for root in again.roots()] == ["7"]
    again.close()


@pytest.mark.parametrize("damage", ["text", "middle", "folder"])
def test_damaged_files_say_what_to_do(tmp_path, damage):
    path = tmp_path / "c.db"
    if damage == "folder":
        path.mkdir()
    elif damage == "text":
        path.write_text("no database at all, " * 99)
    else:
        whole = Collection(path, "c")
        for number in range(50):
            corpus.put(whole, f"{number}.txt", f"words {number} " * 300)
        whole.close()
        data = bytearray(path.read_bytes())
        data[4096:-4096] = os.urandom(len(data) - 8192)
        path.write_bytes(data)
    with pytest.raises(DocumentError, match="The collection c cannot be read") as failed:
        Collection(path, "c").by_words('"words"', 8)
    assert failed.value.hint is not None
    assert "edgechat docs rm c" in failed.value.hint
