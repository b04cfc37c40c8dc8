"""`edgechat docs`, as somebody types it."""

import json

import pytest

from edgechat.documents import registry
from tests.cli.running import edgechat
from tests.kit import tiny


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "guide.md").write_text("# Lamps\nThe lamp burns oil.\n", encoding="utf-8")
    (folder / "notes.txt").write_text("Ships pass at night.\x1b[2J\n", encoding="utf-8")
    return folder


def docs(*words, piped=None):
    return edgechat("docs", *words, piped=piped)


def test_from_the_first_folder_to_the_last(folder):
    assert docs("list").stdout == "There are no documents yet. To add some: edgechat docs add FOLDER\n"
    assert docs("update").stdout == "There are no documents yet. To add some: edgechat docs add FOLDER\n"

    added = docs("add", folder)
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout == (
        "handbook: 2 files, 2 passages, 1 KiB of text.\n"
        'To ask about it: edgechat run MODEL --docs handbook "QUESTION"\n'
        "To search by meaning, too: edgechat pull embeddinggemma (318 MiB), then edgechat docs update\n"
    )
    assert docs("list").stdout == f"handbook  2 files, 2 passages, 1 KiB of text  {folder}\n"
    assert docs("update").stdout == "handbook: nothing has changed.\n"

    (folder / "guide.md").write_text("# Lamps\nThe lamp is electric.\n", encoding="utf-8")
    (folder / "notes.txt").unlink()
    (folder / "more.md").write_text("More.\n", encoding="utf-8")
    assert docs("update", "handbook").stdout == "handbook: 2 read, 1 gone.\n"

    found = docs("search", "handbook", "electric lamps?")
    assert found.stdout == "handbook/guide.md, lines 1–2\n    # Lamps\n    The lamp is electric.\n\n"
    assert docs("search", "handbook", "whales").stdout == "Nothing in these documents has a word of this.\n"

    removed = docs("rm", "handbook", "--yes")
    assert removed.returncode == 0
    assert removed.stdout.endswith("Forgot handbook. The files themselves are still there.\n")
    assert (folder / "guide.md").exists()
    assert docs("list", "--json").stdout == "[]\n"


def test_json(folder):
    docs("add", folder, "--name", "books")
    (entry,) = json.loads(docs("list", "--json").stdout)
    assert entry == {
        "name": "books",
        "paths": [str(folder)],
        "away": [],
        "files": 2,
        "passages": 2,
        "bytes": 52,
        "embedded": 0,
    }
    (found,) = json.loads(docs("search", "books", "oil", "--json").stdout)
    assert found == {
        "name": "handbook/guide.md, lines 1–2",
        "path": str(folder / "guide.md"),
        "place": "lines 1–2",
        "start": 1,
        "end": 2,
        "text": "# Lamps\nThe lamp burns oil.",
    }
    assert docs("search", "books", "whales", "--json").stdout == "[]\n"


def test_escape_sequences_stay_in_the_document(folder):
    docs("add", folder)
    assert "\x1b" not in docs("search", "handbook", "ships").stdout


def test_another_folder_and_its_removal(folder, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Whales.\n", encoding="utf-8")
    docs("add", folder)
    assert docs("add", other, "--name", "handbook").stdout.startswith("handbook: 3 files")
    inner = docs("add", folder / "guide.md", "--name", "handbook")
    assert inner.returncode == 1
    assert "overlaps" in inner.stderr
    assert "edgechat docs add --name NAME" in inner.stderr
    wrong = docs("rm", "handbook", tmp_path / "othr.txt", "--yes")
    assert wrong.returncode == 1
    assert f"{other}" in wrong.stderr
    assert docs("rm", "handbook", other, "--yes").returncode == 0
    assert docs("list").stdout.startswith("handbook  2 files")


def test_nothing_is_removed_without_consent(folder):
    docs("add", folder)
    refused = docs("rm", "handbook")
    assert refused.returncode != 0
    assert "--yes" in refused.stderr
    assert docs("list").stdout.startswith("handbook")


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("add", "no/such/folder"), "No such file or folder: no/such/folder", "Check the path"),
        (("add", ".", "--name", "a/b"), "'a/b' is no name for documents", "edgechat docs add --name notes"),
        (("search", "handbok", "lamps"), "There are no documents 'handbok'", "There are: handbook"),
        (("update", "handbok"), "There are no documents 'handbok'", "There are: handbook"),
        (("rm", "handbok", "--yes"), "There are no documents 'handbok'", "There are: handbook"),
        (("serch", "handbook", "x"), "serch", "search"),
    ],
)
def test_typos_are_answered(folder, words, said, hint):
    docs("add", folder)
    failed = docs(*words)
    assert failed.returncode != 0
    assert said in failed.stderr
    assert hint in failed.stderr
    assert "Traceback" not in failed.stderr


def test_what_is_left_out_is_told(folder):
    (folder / "key.pem").write_text("secret", encoding="utf-8")
    added = docs("add", folder)
    assert added.returncode == 0
    assert "handbook/key.pem: left out: it may hold a secret." in added.stderr


def test_a_folder_without_documents(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    added = docs("add", empty)
    assert "there is no text in it yet that could be read" in added.stderr
    assert added.stdout == "empty: 0 files, 0 passages, 0 MiB of text.\n"


def test_words_of_commands_are_no_names(folder):
    assert "'off' is no name for documents" in docs("add", folder, "--name", "off").stderr
    (folder.parent / "all").mkdir()
    assert docs("add", folder.parent / "all").stdout.startswith("documents: 0 files")


def test_a_folder_that_is_away_is_told_of_and_kept(folder):
    docs("add", folder)
    folder.rename(folder.with_name("elsewhere"))
    away = f"note: {folder} is not there now; its 2 files are answered from what was indexed.\n"
    assert docs("list").stderr == away
    assert json.loads(docs("list", "--json").stdout)[0]["away"] == [str(folder)]
    updated = docs("update")
    assert (updated.stdout, updated.stderr) == ("handbook: nothing has changed.\n", away)
    found = docs("search", "handbook", "oil")
    assert (found.stdout.startswith("handbook/guide.md"), found.stderr) == (True, away)
    assert docs("rm", "handbook", folder, "--yes").returncode == 0
    assert docs("list").stdout.startswith("handbook  0 files")


def test_a_damaged_collection_hides_no_other(folder):
    docs("add", folder, "--name", "a")
    docs("add", folder, "--name", "c")
    (registry.folder() / "b.db").write_text("no database at all, " * 99)
    listed = docs("list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["a", "c"]
    assert listed.stderr.startswith("note: The documents b cannot be read: ")
    assert "edgechat docs rm b" in listed.stderr
    assert [one["name"] for one in json.loads(docs("list", "--json").stdout) if "problem" in one] == ["b"]
    updated = docs("update")
    assert updated.stdout == "a: nothing has changed.\nc: nothing has changed.\n"
    assert "edgechat docs rm b" in updated.stderr
    assert docs("rm", "b", folder, "--yes").returncode == 1
    assert docs("rm", "b", "--yes").stdout.endswith("Forgot b. The files themselves are still there.\n")
    assert docs("list").stderr == ""


@pytest.mark.slow
@pytest.mark.usefixtures("measured")
def test_a_question_about_documents(folder):
    docs("add", folder)
    options = ("--docs", "handbook", "--max-tokens", "8", "--temperature", "0", "--ctx", "8192")
    asked = edgechat("run", tiny(), "What does the lamp burn?", *options)
    assert asked.returncode == 0, asked.stderr
    assert "it cites none of what it was given: [1] handbook/guide.md; [2] handbook/notes.txt" in asked.stderr
    answer = json.loads(edgechat("run", tiny(), "And the ships?", *options, "--json").stdout)
    assert answer["sources"] == []
    folder.rename(folder.with_name("elsewhere"))
    away = edgechat("run", tiny(), "What does the lamp burn?", *options)
    assert f"note: {folder} is not there now; its 2 files are answered from what was indexed." in away.stderr
    assert "[1] handbook/guide.md; [2] handbook/notes.txt" in away.stderr
    unknown = edgechat("run", tiny(), "What?", "--docs", "nosuch")
    assert unknown.returncode == 1
    assert "There are no documents 'nosuch'." in unknown.stderr
    assert "There are: handbook" in unknown.stderr
