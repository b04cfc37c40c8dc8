"""Bringing collections up to date with the disk."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from edgechat.base.process.child import ChildLost, ChildNeverReady
from edgechat.documents.collection import Collection
from edgechat.documents.indexing import update
from tests.documents.reading.files import pdf
from tests.documents.test_collection import check

KILLS = int(os.environ.get("EDGECHAT_SOAK_KILLS", "100"))
INDEX = """
import sys
from pathlib import Path
from edgechat.documents.collection import Collection
from edgechat.documents.indexing import update
print("ready", flush=True)
update(Collection(Path(sys.argv[1]), "c"))
"""


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("# Title\nalpha words", encoding="utf-8")
    (folder / "sub" / "b.txt").write_text("beta words", encoding="utf-8")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture
def collection(tmp_path, folder):
    with closing(Collection(tmp_path / "c.db", "c")) as collection:
        collection.add_root(str(folder))
        yield collection


def contents(collection):
    check(collection)
    return {
        file.path: " ".join(one.text for one in collection.document(file))
        for file in collection.files()
        if file.n_bytes
    }


def test_new_changed_touched_and_gone(collection, folder):
    told = update(collection)
    assert (told.read, told.removed, told.unchanged, told.is_complete) == (2, 0, 0, True)
    assert contents(collection) == {"a.md": "# Title\nalpha words", "sub/b.txt": "beta words"}

    told = update(collection)
    assert (told.read, told.unchanged, told.removed) == (0, 2, 0)

    os.utime(folder / "a.md", ns=(1, 1))
    change = collection.document(collection.files()[0])[0].id
    told = update(collection)
    assert (told.read, told.unchanged, told.removed) == (0, 2, 0)
    assert collection.document(collection.files()[0])[0].id == change  # vectors, too, stay with it
    assert collection.files()[0].changed == 1

    (folder / "a.md").write_text("gamma", encoding="utf-8")
    (folder / "sub" / "b.txt").unlink()
    (folder / "c.txt").write_text("delta", encoding="utf-8")
    told = update(collection)
    assert (told.read, told.removed, told.unchanged) == (2, 1, 0)
    assert contents(collection) == {"a.md": "gamma", "c.txt": "delta"}


def test_what_is_of_no_kind_that_is_read_is_counted_and_the_first_are_named(collection, folder):
    told = update(collection)
    assert told.others.about == "1 file is of a kind that is not read: folder/picture.png"
    for name in ("a.zip", "b.bin", "sub/c.mp4", "Cargo.lock"):
        (folder / name).touch()
    told = update(collection)
    names = "folder/Cargo.lock, folder/a.zip, folder/b.bin and 2 more"
    assert told.others.about == f"5 files are of kinds that are not read: {names}"
    assert [root.others for root in collection.roots()] == [told.others]
    (folder / "picture.png").unlink()
    assert update(collection).others.count == 4


def test_one_file_is_a_root(collection, folder):
    collection.remove_root(str(folder))
    collection.add_root(str(folder / "a.md"))
    assert update(collection).read == 1
    (file,) = collection.files()
    assert (file.path, file.name, file.location) == ("", "a.md", folder / "a.md")
    (folder / "a.md").unlink()
    assert update(collection).removed == 1


def test_a_folder_that_is_not_there_keeps_its_files(collection, folder):
    other = folder.with_name("other.txt")
    other.write_text("other words", encoding="utf-8")
    collection.add_root(str(other))
    update(collection)
    folder.rename(folder.with_name("unplugged"))
    other.write_text("changed words", encoding="utf-8")
    told = update(collection)
    assert (told.read, told.removed, told.is_complete) == (1, 0, True)
    (root,) = told.away
    assert root.away == f"{folder} is currently unavailable; its 2 files are searched as last indexed."
    assert contents(collection) == {
        "": "changed words",
        "a.md": "# Title\nalpha words",
        "sub/b.txt": "beta words",
    }

    folder.with_name("unplugged").rename(folder)
    (folder / "a.md").unlink()
    told = update(collection)
    assert (told.removed, told.away) == (1, [])


def test_a_folder_that_cannot_be_listed_keeps_its_files(collection, monkeypatch):
    update(collection)

    def refuse(path):
        raise OSError(112, "Host is down")

    monkeypatch.setattr("os.scandir", refuse)
    assert [root.files for root in update(collection).away] == [2]
    assert len(contents(collection)) == 2


def test_an_empty_folder_is_empty_unless_it_is_on_another_device(collection, folder):
    update(collection)
    (files,) = collection.roots()
    assert files.device == str(os.stat(folder).st_dev)
    shutil.rmtree(folder)
    folder.mkdir()  # as the folder on which a drive was mounted
    collection.put_device(str(folder), "another")
    told = update(collection)
    assert (told.removed, len(told.away), len(contents(collection))) == (0, 1, 2)
    collection.put_device(str(folder), files.device)
    told = update(collection)
    assert (told.removed, told.away, contents(collection)) == (2, [], {})


def test_a_file_of_a_folder_that_is_not_there(collection, folder):
    collection.remove_root(str(folder))
    collection.add_root(str(folder / "a.md"))
    update(collection)
    folder.rename(folder.with_name("unplugged"))
    told = update(collection)
    assert (told.removed, [root.files for root in told.away]) == (0, [1])
    folder.mkdir()
    assert update(collection).removed == 1


def test_secrets_are_left_out_and_told(collection, folder):
    (folder / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nzebra", encoding="utf-8")
    for _ in range(2):
        (left,) = update(collection).left_out
        assert (left.path, left.note) == ("key.pem", "left out: it may hold a secret")
    assert not collection.by_words('"zebra"', 8)


def test_links_lead_to_nothing_secret_hidden_or_outside(collection, folder):
    outside = folder.with_name("outside.md")
    outside.write_text("# Outside\nzebra words", encoding="utf-8")
    links = {
        "home.md": Path("../.aws/config"),
        "secret.md": Path("credentials"),
        "hidden.md": Path(".git/config"),
        "outside.md": outside,
        "sub/up.md": Path("../../outside.md"),
        "within.md": Path("sub/b.txt"),
        "circle.md": Path("circle.md"),
    }
    for file in ("../.aws/config", "credentials", ".git/config"):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("zebra", encoding="utf-8")
    (folder / "home.md").write_text("innocent", encoding="utf-8")
    update(collection)
    (folder / "home.md").unlink()  # it becomes a link after it was read
    for name, target in links.items():
        (folder / name).symlink_to(target)
    for _ in range(2):
        assert {file.path: file.note for file in update(collection).left_out} == {
            "credentials": "left out: it may hold a secret",
            "home.md": "left out: it may hold a secret",
            "secret.md": "left out: it may hold a secret",
            "hidden.md": "left out: it links to a hidden file, or outside the folder",
            "outside.md": "left out: it links to a hidden file, or outside the folder",
            "sub/up.md": "left out: it links to a hidden file, or outside the folder",
        }
        assert sorted(contents(collection)) == ["a.md", "sub/b.txt", "within.md"]
    assert not collection.by_words('"zebra"', 8)


def test_a_folder_or_file_that_is_named_may_be_a_link(collection, folder):
    folder.with_name("link").symlink_to(folder)
    folder.with_name("link.md").symlink_to(folder / "a.md")
    folder.with_name("key.md").symlink_to("key.pem")
    folder.with_name("key.pem").write_text("zebra", encoding="utf-8")
    for name in ("link", "link.md", "key.md"):
        collection.add_root(str(folder.with_name(name)))
    told = update(collection)
    assert (told.read, [file.name for file in told.left_out]) == (5, ["key.md"])


def test_what_git_ignores_is_left_out(collection, folder):
    (folder / ".gitignore").write_text("sub/\n", encoding="utf-8")
    update(collection)
    assert list(contents(collection)) == ["a.md"]


def test_a_folder_that_cannot_be_read_is_not_gone(collection, folder, monkeypatch):
    update(collection)
    (folder / "a.md").unlink()
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    assert update(collection).removed == 1
    assert list(contents(collection)) == ["sub/b.txt"]
    monkeypatch.setattr("os.scandir", scandir)
    (folder / "sub" / "b.txt").unlink()
    assert update(collection).removed == 1


def test_a_folder_that_is_too_deep_keeps_only_what_is_in_it(collection, folder, monkeypatch):
    other = folder.with_name("other")
    (other / "deep").mkdir(parents=True)
    for file in ("c.md", "deep/d.md"):
        (other / file).write_text("delta", encoding="utf-8")
    collection.add_root(str(other))
    update(collection)
    monkeypatch.setattr("edgechat.base.folders._DEEPEST", 0)
    for gone in (folder / "a.md", other / "c.md", other / "deep" / "d.md"):
        gone.unlink()
    told = update(collection)
    assert (told.removed, told.is_complete) == (2, False)
    assert list(contents(collection)) == ["sub/b.txt", "deep/d.md"]


def test_a_file_that_could_not_be_read_is_tried_again(collection, monkeypatch):
    with monkeypatch.context() as patched:

        def refuse(path, _most):
            raise PermissionError(13, "Permission denied")

        patched.setattr("edgechat.base.paths.read_bytes", refuse)
        notes = {file.note for file in update(collection).left_out}
        assert notes == {"cannot be read: Permission denied"}
    assert update(collection).read == 2
    assert len(contents(collection)) == 2


@pytest.mark.slow
def test_a_missing_package_is_no_fault_of_the_files(collection, folder, tmp_path, monkeypatch):
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "pypdf.py").write_text("raise ImportError", encoding="utf-8")
    for name in ("one", "two"):
        (folder / f"{name}.pdf").write_bytes(pdf([name]))
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(tmp_path / "stub"))
        for unchanged in (0, 4, 4):
            told = update(collection)
            assert told.unchanged == unchanged
            notes = [file.note for file in told.left_out]
            assert notes == ["is a PDF, for which pypdf is not installed"] * 2
    told = update(collection)
    assert (told.read, told.left_out) == (2, [])
    assert contents(collection)["one.pdf"] == "one"


@pytest.mark.parametrize(
    ("lost", "tries"), [(ChildLost("died"), 2), (ChildNeverReady("could not be started"), 3)]
)
def test_a_reader_that_is_lost_is_tried_again(collection, folder, monkeypatch, lost, tries):
    (folder / "c.html").write_text("<p>gamma", encoding="utf-8")
    started = 0

    def fail(role):
        nonlocal started
        started += 1
        raise lost

    with monkeypatch.context() as patched:
        patched.setattr("edgechat.base.process.file_decoder.Child", fail)
        for _ in range(3):
            assert [file.path for file in update(collection).left_out] == ["c.html"]
        assert started == tries  # a file that costs its reader each time is let be
    os.utime(folder / "c.html", ns=(1, 1))
    assert update(collection).read == (1 if tries == 3 else 0)


def test_cancelling_keeps_what_is_done(collection, folder):
    seen = []
    told = update(collection, seen.append, lambda: len(seen) == 1)
    assert (told.read, told.is_complete) == (1, False)
    assert [one.total for one in seen] == [2, 2]
    assert len(contents(collection)) == 1
    assert update(collection).read == 1


def write(folder, round_number):
    """Write, change and remove files; return what is there."""
    chance = random.Random(round_number)
    there = {}
    for number in range(60):
        path = folder / f"{number}.txt"
        path.unlink(missing_ok=True)
        if chance.random() < 0.9:
            there[path.name] = f"file{number} round{chance.randrange(round_number + 1)} " + "words " * 500
            path.write_text(there[path.name], encoding="utf-8")
    return there


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
@pytest.mark.parametrize("kills", [10, pytest.param(KILLS, marks=[pytest.mark.soak, pytest.mark.slow])])
def test_killed_at_random_moments(tmp_path, kills):
    folder, path, chance, finished = tmp_path / "folder", tmp_path / "c.db", random.Random(1), 0
    folder.mkdir()
    with closing(Collection(path, "c")) as collection:
        collection.add_root(str(folder))
    for number in range(kills):
        there = write(folder, number)
        with subprocess.Popen([sys.executable, "-c", INDEX, path], stdout=subprocess.PIPE) as indexing:
            assert indexing.stdout is not None
            assert indexing.stdout.readline()
            time.sleep(chance.uniform(0, 0.15))
            indexing.send_signal(signal.SIGKILL)
        finished += indexing.returncode == 0
        with closing(Collection(path, "c")) as collection:
            check(collection)  # whole, before anything mends it
            for file in collection.files():
                text = " ".join(one.text for one in collection.document(file))
                assert len(text.split()) == 502  # not in part, nor in two states
            update(collection)
            found = contents(collection)
            assert {name: text.split() for name, text in found.items()} == {
                name: text.split() for name, text in there.items()
            }
    assert finished < kills
