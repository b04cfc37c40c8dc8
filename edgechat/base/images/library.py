"""A folder of images, each stored once under the hash of its bytes.

DIGEST.png (.jpg, ...) is the file as it was given, readable by its owner only. DIGEST.json says what it is,
so that it need not be decoded to be found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import ImageNotStored
from edgechat.base.images.decoding import Decoder, ImageFacts, name_of, read_file
from edgechat.base.images.image import Image

_EXTENSIONS = {"png": "png", "jpeg": "jpg", "webp": "webp", "gif": "gif", "bmp": "bmp", "heic": "heic"}
_DIGEST = re.compile("[0-9a-f]{32}")
_OWN = re.compile(rf"{_DIGEST.pattern}\.({'|'.join(_EXTENSIONS.values())}|json)|{paths.UNFINISHED}[0-9a-f]+")
_MOST_FACTS = 1024
"""Bytes of a DIGEST.json."""
_NEW = 3600.0
"""Seconds during which an image is new: the message that it belongs to may not be saved yet."""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """A file of a library."""

    digest: str
    size: int
    """Bytes."""
    used: float
    """When it was last added, as a POSIX time."""


def digest_of(data: bytes) -> str:
    """Return the name of an image: BLAKE2b of its file, 16 bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class ImageLibrary:
    """Images in a folder, which is created with the first one. Processes may share it. Blocks on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, data: bytes, *, name: str | None = None, decoder: Decoder | None = None) -> Image:
        """Store an image; one that is there already is only marked as used. Raises ImageError.

        name: begins the error's message. decoder: checks the image; None starts one.
        """
        digest = digest_of(data)
        if (image := self.get(digest)) is not None:
            with contextlib.suppress(OSError):
                os.utime(image.path)
                os.utime(self._facts_path(digest))
            return image
        with contextlib.nullcontext(decoder) if decoder is not None else Decoder() as checks:
            facts = checks.inspect(data, name=name)
        path = self._path(digest, facts)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder.chmod(0o700)
            paths.replace(self._facts_path(digest), msgspec.json.encode(facts))
            paths.replace(path, data)
        except OSError as error:
            raise ImageNotStored(
                f"The image cannot be stored in {self._folder}: {error.strerror}.",
                hint="Make room on the disk, and check that you may write to that folder.",
            ) from error
        return Image(digest, str(path), facts.width, facts.height)

    def add_file(self, path: Path) -> Image:
        """Store a copy of a file. Raises ImageError, also for a pipe or a device."""
        return self.add(read_file(path), name=name_of(path))

    def get(self, digest: str) -> Image | None:
        """Return an image; None if it is not there, or is a link or anything else but a file."""
        if _DIGEST.fullmatch(digest) is None:
            return None
        try:
            written = paths.read_bytes(self._facts_path(digest), _MOST_FACTS)
            facts = msgspec.json.decode(written, type=ImageFacts)
            path = self._path(digest, facts)
            if not stat.S_ISREG(path.lstat().st_mode):
                return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return Image(digest, str(path), facts.width, facts.height)

    def remove(self, digest: str) -> None:
        """Delete an image, if it is there. Raises ImageError if that is not possible."""
        if _DIGEST.fullmatch(digest) is None:
            return
        for extension in (*_EXTENSIONS.values(), "json"):
            self._delete(self._folder / f"{digest}.{extension}")

    def stored(self) -> list[StoredImage]:
        """Return the images, as they are on the disk."""
        return [
            StoredImage(path.stem, about.st_size, about.st_mtime)
            for path, about in self._files()
            if path.suffix != ".json" and _DIGEST.fullmatch(path.stem)
        ]

    def prune(self, keep: Collection[str], *, older_than: float = _NEW) -> None:
        """Delete all images but those in `keep` and those added in the last `older_than` seconds.

        Raises ImageError if that is not possible.
        """
        oldest = time.time() - older_than
        for path, about in self._files():
            if path.stem not in keep and about.st_mtime < oldest:
                self._delete(path)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files that a library makes, unfinished ones included."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) and _OWN.fullmatch(entry.name):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)

    def _delete(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ImageNotStored(f"The image {path} cannot be deleted: {error.strerror}.") from error

    def _path(self, digest: str, facts: ImageFacts) -> Path:
        return self._folder / f"{digest}.{_EXTENSIONS[facts.format]}"

    def _facts_path(self, digest: str) -> Path:
        return self._folder / f"{digest}.json"
