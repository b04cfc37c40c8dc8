"""What is found below a folder, and what of it git ignores."""

import subprocess
import sys

import pytest

from edgechat.base import folders
from edgechat.base.folders import walk


def make(root, *files, **texts):
    for path in files:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts.get(path, ""))
    return root


def found(folder, most=1000):
    contents = walk(folder, most=most, seconds=10.0)
    assert contents.is_complete
    return contents.paths


def test_what_is_deeper_comes_later_and_hidden_entries_not_at_all(tmp_path):
    make(tmp_path, "z.txt", "a/deep/b.txt", "a/c.txt", ".hidden", ".git/config")
    assert found(tmp_path) == ["a/", "z.txt", "a/c.txt", "a/deep/", "a/deep/b.txt"]


RULES = {
    ".gitignore": "*.log\n/build/\nnode_modules\n!keep.log\n# note\n\n!\n",
    "src/.gitignore": "*.tmp\n!important.log\n",
}
FILES = (
    *("a.log", "keep.log", "build/x", "src/build/y", "node_modules/z/index.js"),
    *("src/a.tmp", "src/b.py", "src/important.log", "src/deep/a.log", "src/deep/c.tmp"),
)


@pytest.fixture
def repository(tmp_path):
    make(tmp_path, *FILES)
    for path, text in RULES.items():
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


@pytest.mark.parametrize("folder", [".", "src", "src/deep"])
def test_what_git_ignores_is_left_out(repository, folder):
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=repository / folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    git_files = {path for path in listed.splitlines() if ".gitignore" not in path}
    assert {path for path in found(repository / folder) if not path.endswith("/")} == git_files


def test_rules_outside_a_repository_are_heeded_too(tmp_path):
    make(tmp_path, "a.log", "b.txt")
    (tmp_path / ".gitignore").write_text("*.log\n")
    assert found(tmp_path) == ["b.txt"]


def test_it_ends_after_so_many_entries(tmp_path):
    make(tmp_path, *(f"{n:02}.txt" for n in range(30)))
    assert len(found(tmp_path, 30)) == 30
    contents = walk(tmp_path, most=10, seconds=10.0)
    assert (len(contents.paths), contents.unread, contents.is_complete) == (10, [""], False)


def test_it_tells_which_folders_it_has_not_read(tmp_path):
    make(tmp_path, "a/1", "a/2", "b/1", "c/1")
    assert walk(tmp_path, most=4, seconds=10.0).unread == ["a/", "b/", "c/"]
    assert walk(tmp_path, most=5, seconds=10.0).unread == ["b/", "c/"]


def test_it_ends_in_time_and_at_a_depth(tmp_path, monkeypatch):
    make(tmp_path, "a/b/c/d.txt")
    assert not walk(tmp_path, most=1000, seconds=-1.0).is_complete
    monkeypatch.setattr(folders, "_DEEPEST", 1)
    contents = walk(tmp_path, most=1000, seconds=10.0)
    assert (contents.paths, contents.unread, contents.is_complete) == (["a/", "a/b/"], ["a/b/"], False)


def test_a_link_to_a_folder_is_not_followed(tmp_path):
    make(tmp_path, "a/b.txt")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "a" / "link.txt").symlink_to("b.txt")
    (tmp_path / "a" / "circle.txt").symlink_to("circle.txt")
    assert found(tmp_path) == ["a/", "a/b.txt", "a/link.txt"]


def test_a_folder_that_cannot_be_read_is_an_error_only_if_it_is_the_one_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError):
        walk(tmp_path / "gone", most=10, seconds=10.0)


@pytest.mark.skipif(sys.platform != "win32", reason="junctions are Windows' own")
def test_junctions_are_not_followed(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.txt").touch()
    link = ["cmd", "/c", "mklink", "/J", str(tmp_path / "inside" / "loop"), str(tmp_path)]
    subprocess.run(link, check=True, capture_output=True)
    assert walk(tmp_path, most=100, seconds=9.0).paths == ["inside/", "inside/a.txt"]
