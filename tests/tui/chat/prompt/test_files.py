"""Which files complete a path, and in which order."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.tui.chat.prompt.files import FileFinder, TypedPath, path_at_end, rank

PATHS = [
    *("README.md", "docs/box.md", "src/", "src/prompt/", "src/prompt/box.py", "src/prompt/inbox.py"),
    *("src/box/other.py", "src/big_old_xylophone.py", "src/unrelated.py"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            (tmp_path / path).write_text("x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(text):
    typed = path_at_end(text)
    assert typed is not None
    return [suggestion.text for suggestion in FileFinder().suggestions(typed)]


@pytest.mark.parametrize(
    ("before", "typed"),
    [
        ("Sum up @no", TypedPath("no", 7, after_at=True)),
        ("@", TypedPath("", 0, after_at=True)),
        ("/attach my fi", TypedPath("my fi", 8, after_at=False)),
        ("/import ", TypedPath("", 8, after_at=False)),
        ("/docs handbook", None),
        ("/docs ~/no", TypedPath("~/no", 6, after_at=False, folders_only=True)),
        ("/rename @no", None),
        ("/attach", None),
        ("me@no", None),
        ("@no ", None),
    ],
)
def test_where_a_path_is_being_typed(before, typed):
    assert path_at_end(before) == typed


def test_names_come_before_paths_and_letters_in_a_row_before_scattered_ones():
    lowest = sorted(filter(None, (rank("box", path, path.lower()) for path in PATHS)))
    assert [path for *_, path in lowest] == [
        *("docs/box.md", "src/prompt/box.py", "src/prompt/inbox.py"),
        *("src/box/other.py", "src/big_old_xylophone.py"),
    ]


@given(st.text(string.ascii_lowercase + "/._", min_size=1, max_size=6), st.sampled_from(PATHS))
def test_a_path_matches_just_if_it_has_the_letters_in_order(query, path):
    letters = iter(path.lower())
    assert (rank(query, path, path.lower()) is not None) == all(letter in letters for letter in query)


def test_what_begins_so_comes_first_then_what_is_found_below():
    assert offered("@sr")[:1] == ["@src/"]
    assert offered("Look at @box.p")[:2] == ["@src/prompt/box.py ", "@src/prompt/inbox.py "]
    assert offered("@src/pr")[0] == "@src/prompt/"


def test_the_argument_of_a_command_is_a_path_without_marks(folder):
    (folder / "my list.txt").write_text("x")
    assert offered("/attach my l") == ["my list.txt"]
    assert offered("@my")[0] == '@"my list.txt" '


def test_a_complete_path_is_not_completed_to_another():
    assert offered("@README.md") == []


def test_a_folder_that_is_gone_offers_nothing(folder, monkeypatch):
    other = folder / "gone"
    other.mkdir()
    monkeypatch.chdir(other)
    other.rmdir()
    assert offered("@x") == []


def test_only_folders_complete_what_wants_a_folder():
    assert offered("/docs src/") == ["src/box/", "src/prompt/"]
