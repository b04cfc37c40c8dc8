import os
from pathlib import Path

import pytest

from edgechat.base.errors import NotAChat, NotWritten
from edgechat.chat.import_export import files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def test_a_name_means_a_file(folder):
    (folder / "out").mkdir()
    assert files.target("a.md", "T") == Path("a.md")
    assert files.target("~/a.md", "T") == folder / "a.md"
    assert files.target("~", "What is a quant?") == folder / "what-is-a-quant.md"
    assert files.target("", "T", ".json").absolute() == folder / "t.json"
    for number in ("", "-2", "-3"):
        path = files.target("out", "What is a quant?")
        assert path == Path("out", f"what-is-a-quant{number}.md")
        files.write(path, "x")


BAD = ["~nobody-is-called-so/x.md", "x" * 300, "a\0b", f"{'x' * 300}/a.md"]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_means_none_is_told(folder, name):
    def export():
        files.write(files.target(name, "T"), "x")

    with pytest.raises(NotWritten, match="cannot be written") as told:
        export()
    assert len(told.value.message) < 300
    assert told.value.hint
    with pytest.raises(NotAChat, match="cannot be read"):
        files.read(name)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_told(folder):
    (folder / "shut").mkdir(mode=0o000)
    with pytest.raises(NotWritten):
        files.write(files.target("shut/a", "T"), "x")


def test_a_file_is_read_from_home(folder):
    (folder / "a.json").write_bytes(b"[]")
    assert files.read("~/a.json") == files.read(folder / "a.json") == b"[]"
