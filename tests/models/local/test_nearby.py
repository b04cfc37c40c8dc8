"""GGUF files in the downloads and in the working folder, among whatever else is there."""

import os
from pathlib import Path

import pytest

from edgechat.models.local.files import Skipped, names
from edgechat.models.local.inventory import models_nearby
from edgechat.models.local.locations import Place, downloads_folder
from tests import homes
from tests.kit import tiny


@pytest.fixture
def user(tmp_path, monkeypatch):
    """The home of a user who works in a folder of it."""
    homes.settle(tmp_path / "user", monkeypatch)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "user/work").mkdir()
    monkeypatch.chdir(tmp_path / "user/work")
    return tmp_path / "user"


def put(user, *paths):
    """Put files there, each newer than the one before."""
    for age, path in enumerate(reversed(paths)):
        target = user / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x" * 20)
        os.utime(target, (10**9 - age, 10**9 - age))


def found(known=()):
    return [model.name for model in models_nearby(known)]


def test_the_newest_first_and_where_they_are(user):
    put(user, "Downloads/old-Q4_K_M.gguf", "work/mine.gguf", "Downloads/a folder/new.GGUF")
    models = models_nearby(())
    assert [(one.name, one.where, one.quant) for one in models] == [
        ("new", "~/Downloads/a folder", None),
        ("mine", "~/work", None),
        ("old-Q4_K_M", "~/Downloads", "Q4_K_M"),
    ]
    assert {one.place for one in models} == {Place.ELSEWHERE}
    assert models[1].chat_name == models[1].full_name == str(user / "work/mine.gguf")


def test_a_split_model_is_one_and_a_projector_is_none(user):
    put(user, "work/m-00001-of-00002.gguf", "work/m-00002-of-00002.gguf", "work/mmproj-m.gguf")
    (one,) = models_nearby(())
    assert (one.name, one.size, one.found.projector.path.name) == ("m", 40, "mmproj-m.gguf")


@pytest.mark.parametrize(
    "path",
    [
        "Downloads/model.gguf.part",
        "Downloads/.hidden.gguf",
        "Downloads/.hidden/model.gguf",
        "Downloads/one/two/model.gguf",
        "Downloads/bad\nname.gguf",
        "Documents/model.gguf",
    ],
)
def test_what_is_not_looked_at(user, path):
    put(user, path)
    assert found() == []


def test_what_is_known_already_is_left_out_by_whatever_link(user):
    put(user, "models/known.gguf", "work/listed.gguf")
    (user / "Downloads").mkdir()
    (user / "Downloads/link.gguf").symlink_to(user / "models/known.gguf")
    (user / "Downloads/loop").symlink_to(user)
    os.mkfifo(user / "Downloads/pipe.gguf")
    assert found((user / "models/known.gguf", user / "work/listed.gguf")) == []
    assert found((user / "work/listed.gguf",)) == ["link"]


def test_a_folder_in_both_counts_once(user, monkeypatch):
    put(user, "Downloads/mine.gguf")
    monkeypatch.chdir(user)
    assert found() == ["mine"]


def test_a_working_folder_that_is_gone(user):
    put(user, "Downloads/mine.gguf")
    (user / "work").rmdir()
    assert found() == ["mine"]


def test_a_working_folder_whose_name_is_no_text(user, monkeypatch):
    folder = os.fsencode(user) + b"/\xff"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    Path("mine.gguf").write_bytes(b"x")
    assert found() == []


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ('XDG_DOWNLOAD_DIR="$HOME/T\u00e9l\u00e9chargements"', "T\u00e9l\u00e9chargements"),
        ('# x\nXDG_DESKTOP_DIR="$HOME/d"\nXDG_DOWNLOAD_DIR="/elsewhere"\n', "/elsewhere"),
        ('XDG_DOWNLOAD_DIR="$OTHER/x"', "Downloads"),
        ("\x00\xff", "Downloads"),
    ],
)
def test_downloads_have_a_name_in_each_language(user, text, folder):
    (user / ".config").mkdir()
    (user / ".config/user-dirs.dirs").write_text(text)
    assert downloads_folder() == user / folder


def test_no_more_than_a_few(user, monkeypatch):
    monkeypatch.setattr("edgechat.models.local.inventory.MOST_NEARBY", 3)
    put(user, *(f"Downloads/{number}.gguf" for number in range(5)))
    assert found() == ["4", "3", "2"]


def test_the_time_is_limited(user):
    put(user, "Downloads/mine.gguf")
    assert names(user / "Downloads", 2, Skipped()) == ["mine.gguf"]
    assert names(user / "Downloads", 2, Skipped(), until=0) == []


def test_real_files_are_read_and_broken_ones_are_told(user, home):
    from edgechat.planner.listing import rows, rows_nearby

    homes.place(tiny(), user / "Downloads/tiny.gguf")
    homes.place(tiny(), user / "Downloads/cut.gguf").write_bytes(tiny().read_bytes()[:3000])
    put(user, "Downloads/noise.gguf")
    damage = {row.model.name: bool(row.glance.damage) for row in rows_nearby(rows())}
    assert damage == {"tiny": False, "cut": True, "noise": True}
