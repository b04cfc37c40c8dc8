"""Images are stored once, for their owner only, and gone when nobody needs them."""

import os
import stat
import time
from pathlib import Path

import pytest

from edgechat.base import paths
from edgechat.base.errors import ImageError
from edgechat.base.file_library import digest_of
from edgechat.base.images.image import Decoder, Image, ImageLibrary
from tests.base.images.files import encoded, quadrants

PNG, JPEG = encoded(quadrants(), "PNG"), encoded(quadrants(), "JPEG")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "below" / "images"


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_an_image_is_stored_once(folder, monkeypatch):
    library = ImageLibrary(folder)
    assert library.stored() == []
    image = library.add(PNG)
    assert image == Image(digest_of(PNG), str(folder / f"{digest_of(PNG)}.png"), 64, 32)
    assert Path(image.path).read_bytes() == PNG

    def inspect(*_, **__):
        raise AssertionError("decoded again")

    monkeypatch.setattr(Decoder, "inspect", inspect)
    assert library.add(PNG) == image
    assert ImageLibrary(folder).get(image.digest) == image
    assert [(one.digest, one.size) for one in library.stored()] == [(image.digest, len(PNG))]


def test_the_digest_is_of_the_bytes():
    assert digest_of(b"") == "cae66941d9efbd404e4d88758ea67670"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_only_the_owner_may_read(folder):
    folder.mkdir(parents=True, mode=0o755)
    image = ImageLibrary(folder).add(PNG)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert image.path


def test_files(folder, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(JPEG)
    image = ImageLibrary(folder).add_file(path)
    assert image.path == str(folder / f"{digest_of(JPEG)}.jpg")
    path.unlink()
    assert ImageLibrary(folder).get(image.digest) == image


def test_what_is_no_image_is_not_stored(folder, tmp_path):
    library = ImageLibrary(folder)
    path = tmp_path / "notes.png"
    path.write_text("Hello")
    with pytest.raises(ImageError, match=r"^notes\.png is not an image, or is damaged\.$"):
        library.add_file(path)
    with pytest.raises(ImageError, match=r"^The image is not an image"):
        library.add(b"Hello")
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_pipes_and_devices_are_refused(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ImageError, match="it is not a regular file"):
            ImageLibrary(folder).add_file(path)


def test_a_disk_that_takes_nothing(folder, monkeypatch):
    def replace(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paths, "replace", replace)
    with pytest.raises(ImageError, match=r"cannot be stored in .*: No space left on device") as caught:
        ImageLibrary(folder).add(PNG)
    assert caught.value.hint


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 32, "0" * 31, "0" * 33, "0" * 32, "/" * 32])
def test_what_is_not_there(folder, digest):
    library = ImageLibrary(folder)
    assert library.get(digest) is None
    library.remove(digest)


@pytest.mark.parametrize("written", [b"", b"{}", b"\xff\xfe", b'{"format": "exe", "width": 1, "height": 1}'])
def test_damaged_facts_are_made_anew(folder, written):
    library = ImageLibrary(folder)
    image = library.add(PNG)
    (folder / f"{image.digest}.json").write_bytes(written)
    assert library.get(image.digest) is None
    assert library.add(PNG) == image
    assert library.get(image.digest) == image


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_links_are_not_followed(folder, tmp_path, monkeypatch):
    library = ImageLibrary(folder)
    image = library.add(PNG)
    elsewhere = tmp_path / "elsewhere.png"
    Path(image.path).rename(elsewhere)
    Path(image.path).symlink_to(elsewhere)
    assert library.get(image.digest) is None
    assert library.stored() == []
    monkeypatch.setattr("edgechat.base.file_library._NEW", -1)
    library.prune(())
    assert elsewhere.read_bytes() == PNG
    assert library.add(PNG) == image  # takes the link's place
    assert not Path(image.path).is_symlink()


def test_removing(folder):
    library = ImageLibrary(folder)
    image, other = library.add(PNG), library.add(JPEG)
    library.remove(image.digest)
    assert library.get(image.digest) is None
    assert names(folder) == {f"{other.digest}.jpg", f"{other.digest}.json"}
    library.remove(image.digest)


def test_pruning(folder, monkeypatch):
    library = ImageLibrary(folder)
    image, other = library.add(PNG), library.add(JPEG)
    (folder / f"{paths.UNFINISHED}abc").write_bytes(b"x")
    (folder / "notes.txt").write_text("not ours")
    library.prune({image.digest})
    assert library.get(other.digest) == other  # new: its message may not be saved yet
    monkeypatch.setattr("edgechat.base.file_library._NEW", -1)
    library.prune({image.digest})
    assert library.get(image.digest) == image
    assert names(folder) == {f"{image.digest}.png", f"{image.digest}.json", "notes.txt"}


def test_adding_again_makes_new(folder):
    library = ImageLibrary(folder)
    image = library.add(PNG)
    yesterday = time.time() - 86400
    for path in folder.iterdir():
        os.utime(path, (yesterday, yesterday))
    library.add(PNG)
    library.prune(())
    assert library.get(image.digest) == image
