"""Pastes that are paths of files dropped on the terminal."""

import pytest

from edgechat.chat.attachments import pastes


def test_paths_of_files_are_dropped_files(tmp_path):
    paths = [tmp_path / name for name in ("a.txt", "b c.txt")]
    for path in paths:
        path.write_text("x")
    first, second = map(str, paths)
    assert pastes.dropped(second) == [second]
    assert pastes.dropped(f"{first} '{second}'\n") == [first, second]
    assert pastes.dropped(paths[1].as_uri()) == [second]
    assert pastes.dropped(f"{first} {tmp_path / 'gone'}") == []
    assert pastes.dropped(str(tmp_path)) == []


@pytest.mark.parametrize(
    "text", [r"C:\Users\a.txt", r'"C:\My files\a.txt"', r"\\host\share\a.txt", "d:/a.txt"]
)
def test_paths_of_windows_may_be_dropped_files(text):
    assert pastes.may_be_path(text)


@pytest.mark.parametrize("text", ["", "hello", "a/b.txt", "note: x", "/a\n/b", "/" * 5000])
def test_other_texts_are_none(text):
    assert not pastes.may_be_path(text)
