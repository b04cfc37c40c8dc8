"""How files are read and made: plain ones of a bounded size, and for their owner alone."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgechat.base import paths
from edgechat.base.errors import SettingsError
from edgechat.device import speed
from edgechat.device.cpu import read_cpu
from edgechat.engine.speculative import controller as lessons
from edgechat.models.catalogue import catalogue, own_catalogue
from edgechat.models.hub import remote_headers
from edgechat.models.local import upkeep
from edgechat.planner import listing
from edgechat.planner.estimate import calibration
from edgechat.server.access import find_key, key_file
from edgechat.settings import change, load, settings_file
from edgechat.settings.reading import MAX_BYTES
from tests.kit import NOT_PRINTABLE, tiny

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and modes are POSIX's")


def a_pipe(path):
    os.mkfifo(path)


def an_endless_device(path):
    path.symlink_to("/dev/zero")


def a_hole(path):
    path.touch()
    os.truncate(path, 1 << 40)


def a_folder(path):
    path.mkdir()


def a_link_to_nothing(path):
    path.symlink_to("nowhere")


ODD = [a_pipe, an_endless_device, a_hole, a_folder]
Make = Callable[[Path], None]


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert paths.read_bytes(path, 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        paths.read_bytes(path, 4)
    with pytest.raises(FileNotFoundError):
        paths.read_bytes(tmp_path / "none", 4)


@posix
@pytest.mark.parametrize("make", ODD)
def test_what_is_no_plain_file_is_not_read(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(OSError, match=r"not a regular file|more than \d+ bytes"):
        paths.read_bytes(tmp_path / "x", 1 << 20)


@posix
@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize(
    ("file", "read"),
    [
        (settings_file, load),
        (settings_file, lambda: change("threads", 2)),
        (own_catalogue, catalogue),
        (key_file, lambda: find_key(None)),
    ],
)
def test_a_persons_file_is_refused_in_words(make, file, read, monkeypatch):
    monkeypatch.delenv("EDGECHAT_API_KEY", raising=False)
    make(file())
    with pytest.raises(
        SettingsError, match=r"cannot be read: it (is not a regular file|has more than)"
    ) as caught:
        read()
    assert str(file()) in caught.value.message


def test_a_file_of_settings_may_have_a_mebibyte():
    settings_file().write_bytes(b"threads = 3\n" + b"#" * (MAX_BYTES - 12))
    assert load().threads == 3
    with settings_file().open("ab") as file:
        file.write(b"#")
    with pytest.raises(SettingsError, match="more than 1048576 bytes"):
        load()


@posix
@pytest.mark.parametrize("make", [*ODD, a_link_to_nothing])
def test_an_odd_cache_is_as_if_there_were_none(make):
    for name in ("speed.json", "glances.bin", "learned.json", "speculation.json"):
        make(paths.cache_dir() / name)
    for path in (remote_headers._path("listings", ("hub", "owner/name", "")), upkeep._folder() / ("0" * 40)):
        path.parent.mkdir(parents=True)
        make(path)
    assert speed.cached_speed(read_cpu()) is None
    assert listing._read() == {}
    assert not calibration.Calibration.read()._runs
    assert lessons._read() == []
    assert remote_headers.cached_listing("hub", "owner/name", None) is None
    assert upkeep.uses() == {}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    paths.replace(path, b"new")
    assert path.read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        paths.replace(tmp_path / "folder", b"new")
    assert {one.name for one in tmp_path.iterdir()} == {"file", "folder"}, "no draft is left"


@posix
def test_what_is_replaced_is_nobody_elses_to_read_and_no_link_is_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"other")
    path = tmp_path / "file"
    path.symlink_to(other)
    paths.replace(path, b"new")
    assert (path.read_bytes(), other.read_bytes(), path.is_symlink()) == (b"new", b"other", False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.alone  # the first run measures the machine
@posix
def test_nothing_that_is_kept_is_for_others_whatever_the_folders_allow(home):
    """Folders that were open before, and a umask that takes nothing away."""
    for name in ("config", "data", "log", "cache", "cache/hub", "cache/states", "data/used"):
        (home / name).mkdir(parents=True)
        (home / name).chmod(0o777)
    model = tiny("dense", mute=NOT_PRINTABLE)
    commands = (["run", model, "hi", "--max-tokens", "8"], ["list"], ["device"])
    for words in commands:
        subprocess.run(
            [sys.executable, "-m", "edgechat", *words], umask=0, check=True, capture_output=True, timeout=60
        )
    kept = {path.relative_to(home): path for path in home.rglob("*") if path.is_file()}
    assert {"engine", "learned", "glances", "chats", "speed"} <= {one.stem.split("-")[0] for one in kept}
    assert {
        str(one): oct(path.stat().st_mode) for one, path in kept.items() if path.stat().st_mode & 0o077
    } == {}
