"""What a question names after an @, and what it must not be sent without."""

import pytest

from edgechat.base.errors import AttachmentError
from edgechat.base.folders import walk
from edgechat.chat.attachments import MOST, bytes_named_in, named_in, read


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "notes.txt").write_text("milk")
    (tmp_path / "my list.txt").write_text("bread")
    (tmp_path / "deep" / "more.txt").write_text("eggs and ham")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(text):
    return [attachment.name for attachment in named_in(text, MOST)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Sum up @notes.txt, please", ["notes.txt"]),
        ('@"my list.txt" and @deep/more.txt.', ["my list.txt", "more.txt"]),
        ("@notes.txt @notes.txt", ["notes.txt"]),
        ("What is in @deep?", ["deep/"]),
        ("@deep/", ["deep/"]),
        ("me@example.org, @nobody, @app.get('/x') and `@types/node`", []),
        ("Why?\n```python\n@functools.cache\n@app/route\ndef f(): ...\n```", []),
    ],
)
def test_what_is_named(text, named):
    assert names(text) == named


@pytest.mark.parametrize("path", ["gone.txt", "deep/gone", "./gone", '"my gone list.txt"'])
def test_what_looks_like_a_path_and_is_none_is_an_error(path):
    with pytest.raises(AttachmentError, match=r"No such file: .*gone") as caught:
        named_in(f"Sum up @{path}, please", MOST)
    assert "backticks" in (caught.value.hint or "")


def test_more_than_a_question_can_have_are_an_error_and_not_left_out():
    with pytest.raises(AttachmentError, match="at most 20"):
        named_in("@notes.txt @deep/more.txt", 1)


def test_a_folder_is_the_list_of_its_names_and_sizes(folder):
    (folder / ".hidden").write_text("x")
    (folder / "evil\x1b[2J.txt").write_text("x")
    text = read(".").text
    assert "deep/\ndeep/more.txt  12 bytes\n" in text
    assert "notes.txt  4 bytes" in text
    assert "hidden" not in text.partition("\n")[2]
    assert "\x1b" not in text
    assert "not complete" not in text


def test_a_file_that_is_deleted_meanwhile_costs_its_size(folder, monkeypatch):
    def deleting(where, **limits):
        contents = walk(where, **limits)
        (folder / "notes.txt").unlink()
        return contents

    monkeypatch.setattr("edgechat.base.folders.walk", deleting)
    assert "\nnotes.txt\n" in read(".").text


def test_the_list_of_a_large_folder_says_that_it_ends(folder):
    for n in range(500):
        (folder / "deep" / f"{n}.txt").write_text("")
    text = read("deep").text
    assert text.endswith("The list is not complete: it ends after 400 entries.\n")


def test_an_empty_folder_is_said_to_be_empty(folder):
    (folder / "empty").mkdir()
    assert read("empty").text.endswith("nothing\n")


def test_the_size_of_what_is_named():
    assert bytes_named_in("@notes.txt and @deep/more.txt and @deep and @gone.txt") == 16
