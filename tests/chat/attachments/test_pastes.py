"""Pastes that are paths of files dropped on the terminal."""

import pytest

from edgechat.chat import attachments


def test_paths_of_files_are_dropped_files(tmp_path):
    paths = [tmp_path / name for name in ("a.txt", "b c.txt")]
    for path in paths:
        path.write_text("x")
    first, second = map(str, paths)
    assert attachments.dropped(second) == [second]
    assert attachments.dropped(f"{first} '{second}'\n") == [first, second]
    assert attachments.dropped(paths[1].as_uri()) == [second]
    assert attachments.dropped(f"{first} {tmp_path / 'gone'}") == []
    assert attachments.dropped(str(tmp_path)) == []


@pytest.mark.parametrize(
    "text", [r"C:\Users\a.txt", r'"C:\My files\a.txt"', r"\\host\share\a.txt", "d:/a.txt"]
)
def test_paths_of_windows_may_be_dropped_files(text):
    assert attachments.may_be_path(text)


@pytest.mark.parametrize("text", ["", "hello", "a/b.txt", "note: x", "/a\n/b", "/" * 5000])
def test_other_texts_are_none(text):
    assert not attachments.may_be_path(text)
