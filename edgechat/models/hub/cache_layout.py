"""The folder in which huggingface_hub keeps a repository, written as that library does, so that all share it.

    models--owner--name/blobs/<hash>                           the bytes
    models--owner--name/blobs/<hash>.incomplete                those of a download that has not ended
    models--owner--name/snapshots/<commit>/folder/a.gguf       a link to them, relative
    models--owner--name/refs/main                              the commit of a branch or tag
    models--owner--name/.xet/<hash>/                           ours: what hf-xet fetches, until it is verified
    .locks/models--owner--name/<hash>.lock                     held while they are written
    .locks/models--owner--name/<hash>.edgechat                 ours: for which revision edgechat began them

The hash is the SHA-256 of a file that the hub keeps with Git LFS, and git's own of a small one.
Where no link can be made the file itself lies in the snapshot. Commits and hashes are hexadecimal, and names
are checked by whoever made the listing; folders below the cache that are links are refused here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from pathlib import Path

from edgechat.base import paths
from edgechat.base.errors import DiskError, HubAnswerError
from edgechat.base.network.offline import is_true
from edgechat.base.text import mebibytes, one_line
from edgechat.models.choices import RemoteFile, RepoListing
from edgechat.models.hub.partial import disk_errors
from edgechat.models.local.hashes import is_digest
from edgechat.models.local.locations import hub_cache

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This file is a cache directory tag created by huggingface_hub.
# For information about cache directory tags, see:
#	https://bford.info/cachedir/
"""
_RESERVE = 1 << 26
"""Bytes of the disk that are left free."""
_MAX_REVISION = 4096
"""Bytes of a revision's name."""


class HubStore:
    """The files of a repository at one commit, in the local cache. Methods raise DiskError."""

    def __init__(self, listing: RepoListing) -> None:
        self.listing = listing
        self.root = hub_cache()
        self._name = "models--" + listing.repo.replace("/", "--")
        self.folder = self.root / self._name

    def path(self, file: RemoteFile) -> Path:
        """Return the file's path in the snapshot, whether it is complete or not."""
        return self.folder.joinpath("snapshots", self.listing.commit, *file.name.split("/"))

    def blob(self, file: RemoteFile) -> Path:
        """Return the path of its blob. Raises HubAnswerError for a file that cannot be verified."""
        return self.folder / "blobs" / self.digest(file)

    def digest(self, file: RemoteFile) -> str:
        """Return the hash by which it is verified. Raises HubAnswerError without one."""
        if file.digest is None:
            raise HubAnswerError(
                f"The hub states no hash for {one_line(file.name)}, so a download could not be verified.",
                hint="Choose another file, or another repository.",
            )
        return file.digest

    def partial(self, file: RemoteFile) -> Path:
        """Return the path of its partial download."""
        return self.partial_of(self.digest(file))

    def partial_of(self, digest: str) -> Path:
        """Return the path of the partial download with this hash."""
        return self.folder / "blobs" / f"{digest}.incomplete"

    def new_xet_folder(self, file: RemoteFile) -> Path:
        """Return a new, empty folder for hf-xet. Requires the file's lock."""
        folder = self.folder / ".xet" / self.digest(file)
        shutil.rmtree(folder, ignore_errors=True)
        self._make_folder(folder)
        return folder

    def lock(self, file: RemoteFile) -> Path:
        """Return the path of its lock, which huggingface_hub uses too."""
        return self.lock_of(self.blob(file).name)

    def lock_of(self, digest: str) -> Path:
        """Return the path of the lock of a hash."""
        return self.root / ".locks" / self._name / f"{digest}.lock"

    def mark_begun(self, file: RemoteFile, revision: str) -> None:
        """Record the revision for which edgechat begins a partial download, unless there is one already."""
        if not os.path.lexists(self.partial(file)):
            self._write(self._mark_path(self.digest(file)), revision)

    def unmark(self, file: RemoteFile) -> None:
        """Remove the record of a partial download that is gone."""
        with contextlib.suppress(OSError):
            self._mark_path(self.digest(file)).unlink()

    def stale_partials(self, revision: str) -> list[str]:
        """Return the hashes of edgechat's partial downloads of files that the revision no longer has."""
        digests = {file.digest for file in self.listing.files}
        marks = self._mark_path("*").parent.glob(self._mark_path("*").name)
        return [mark.stem for mark in marks if mark.stem not in digests and _revision_in(mark) == revision]

    def remove_stale(self, digest: str) -> int:
        """Remove a stale partial download; return its size. Requires its lock. Raises OSError."""
        path = self.partial_of(digest)
        size = os.lstat(path).st_size if os.path.lexists(path) else 0
        path.unlink(missing_ok=True)
        self._mark_path(digest).unlink(missing_ok=True)
        return size

    def _mark_path(self, digest: str) -> Path:
        return self.lock_of(digest).with_suffix(".edgechat")

    def is_here(self, file: RemoteFile) -> bool:
        """Return whether the snapshot has the file, by its size."""
        return _size(self.path(file)) == file.size

    def has_bytes(self, file: RemoteFile) -> bool:
        """Return whether its bytes are complete, by their number, for any commit."""
        return self.is_here(file) or _size(self.blob(file)) == file.size

    def n_kept(self, file: RemoteFile) -> int:
        """Return the size of its partial download."""
        return min(_size(self.partial(file)) or 0, file.size)

    def make_folders(self, file: RemoteFile) -> None:
        """Create the folders for the file, its blob and its lock."""
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        for path in (self.blob(file), self.path(file), self.lock(file)):
            self._make_folder(path.parent)
        # Made new or left alone: what is a link, even to nowhere, is not written through.
        with contextlib.suppress(OSError), (self.root / "CACHEDIR.TAG").open("x", encoding="ascii") as tag:
            tag.write(_TAG)

    def put(self, file: RemoteFile, *, new: bool) -> None:
        """Link the complete blob into the snapshot. new: the blob is not in use and may be moved."""
        path, blob = self.path(file), self.blob(file)
        draft = path.with_name(f".{uuid.uuid4().hex[:12]}.tmp")
        if self.is_here(file):
            return
        try:
            with disk_errors(path):
                if not _symlinked(blob, draft):
                    if new:
                        draft = blob
                    else:
                        shutil.copyfile(blob, draft)
                os.replace(draft, path)
        except DiskError:
            with contextlib.suppress(OSError):
                path.with_name(draft.name).unlink()
            raise

    def write_ref(self, revision: str) -> None:
        """Record the commit of a branch or tag."""
        if revision == self.listing.commit:
            return
        path = self.folder.joinpath("refs", *revision.split("/"))
        self._make_folder(path.parent)
        self._write(path, self.listing.commit)

    def _write(self, path: Path, text: str) -> None:
        """Write a small file atomically; a link is replaced, not followed."""
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        with disk_errors(path):
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, path)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder below the root, with its parents, none of which may be a link."""
        folder_above = self.root
        for part in folder.relative_to(self.root).parts:
            folder_above = folder_above / part
            with disk_errors(folder_above):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder_above)
                kind = os.lstat(folder_above).st_mode
            if not stat.S_ISDIR(kind):
                what = "a link" if stat.S_ISLNK(kind) else "not a folder"
                raise DiskError(
                    f"{one_line(str(folder_above), 300)} is {what}; edgechat does not write through it.",
                    hint="Replace it by a real folder, or set HF_HUB_CACHE to another folder.",
                )


def check_space(needed: int) -> None:
    """Raise DiskError unless the cache's disk has so many bytes free, and a reserve."""
    folder = hub_cache()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed and needed + _RESERVE > free:
        raise DiskError(
            f"The download needs {mebibytes(needed)}, but the disk of {one_line(str(folder), 300)} has "
            f"only {mebibytes(free)} free.",
            hint="Free some space, choose a smaller quantization with --quant, or set HF_HUB_CACHE to a "
            "folder on another disk.",
        )


def _symlinked(blob: Path, path: Path) -> bool:
    """Make `path` a relative link to `blob`; return False where links are not possible."""
    if is_true("HF_HUB_DISABLE_SYMLINKS"):
        return False
    try:
        os.symlink(os.path.relpath(blob, path.parent), path)
    except OSError:
        return False
    return True


def _revision_in(mark: Path) -> str | None:
    if not is_digest(mark.stem):
        return None
    try:
        return paths.read_bytes(mark, _MAX_REVISION).decode()
    except (OSError, ValueError):
        return None


def _size(path: Path) -> int | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None
