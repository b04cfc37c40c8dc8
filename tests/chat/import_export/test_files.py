import os
from pathlib import Path

import pytest

from edgechat.base.errors import NotAChat, NotWritten
from edgechat.chat.import_export import export


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def test_a_name_means_a_file(folder):
    (folder / "out").mkdir()
    assert export.target("a.md", "T") == Path("a.md")
    assert export.target("~/a.md", "T") == folder / "a.md"
    assert export.target("~", "What is a quant?") == folder / "what-is-a-quant.md"
    assert export.target("", "T", ".json").absolute() == folder / "t.json"
    for number in ("", "-2", "-3"):
        path = export.target("out", "What is a quant?")
        assert path == Path("out", f"what-is-a-quant{number}.md")
        export.write(path, "x")


BAD = ["~nobody-is-called-so/x.md", "x" * 300, "a\0b", f"{'x' * 300}/a.md"]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_means_none_is_told(folder, name):
    def written():
        export.write(export.target(name, "T"), "x")

    with pytest.raises(NotWritten, match="cannot be written") as told:
        written()
    assert len(told.value.message) < 300
    assert told.value.hint
    with pytest.raises(NotAChat, match="cannot be read"):
        export.read(name)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_told(folder):
    (folder / "shut").mkdir(mode=0o000)
    with pytest.raises(NotWritten):
        export.write(export.target("shut/a", "T"), "x")


def test_a_file_is_read_from_home(folder):
    (folder / "a.json").write_bytes(b"[]")
    assert export.read("~/a.json") == export.read(folder / "a.json") == b"[]"
