"""Updates a collection from disk: reads new and changed files, and removes those that no longer exist."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.base.errors import DocumentError, ReaderLost, ReaderMissing
from edgechat.base.folders import FolderContents, walk
from edgechat.base.process.file_decoder import MAX_FILE_BYTES
from edgechat.base.text import is_text
from edgechat.documents.collection import MOST_NAMES, Collection, File, OtherFiles, Root
from edgechat.documents.passages import passages_of
from edgechat.documents.reading.reader import DocumentReader, is_secret, kind_of

MOST_FILES = 200_000
_WALK_SECONDS = 120.0
_SECRET = "left out: it may hold a secret"
_OUTSIDE = "left out: it links to a hidden file, or outside the folder"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an update."""

    done: int
    """Number of files checked."""
    total: int
    name: str
    """Name of the file currently being read."""


class Update(msgspec.Struct, kw_only=True):
    """The result of an update."""

    read: int = 0
    """Number of new and changed files that are now in the collection."""
    removed: int = 0
    unchanged: int = 0
    left_out: list[File] = msgspec.field(default_factory=list)
    """Documents that are missing from the collection, or only partly in it; their `note` says why."""
    others: OtherFiles = OtherFiles()
    """Files that were skipped because of their kind."""
    away: list[Root] = msgspec.field(default_factory=list)
    """Folders and files that are unavailable; they stay in the collection unchanged."""
    is_complete: bool = True
    """Whether everything was checked; False if a folder has too many files, or the update was cancelled."""


def update(
    collection: Collection,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Update:
    """Update a collection from disk. Blocks. If it is cancelled or killed, completed files are kept.

    A file is read if its modification time or size has changed, and indexed again if its content has. Raises
    DocumentError.
    """
    told = Update()
    known = {(file.root, file.path): file for file in collection.files()}
    found: list[File] = []
    gone: list[File] = []
    for root in collection.roots():
        below = files_below(Path(root.path))
        if is_away(root):  # checked after the walk, during which the drive may have been unplugged
            told.away.append(root)
            continue
        with suppress(OSError):  # the file may have been deleted
            if (device := _device_of(Path(root.path))) != root.device:
                collection.put_device(root.path, device)
        if below.others != root.others:
            collection.put_others(root.path, below.others)
        found += below.files
        told.others += below.others
        told.is_complete &= below.is_complete
        here = {file.path for file in below.files}
        # Files that the walk did not reach may still exist.
        gone += (
            file
            for file in known.values()
            if file.root == root.path
            and file.path not in here
            and below.unread.isdisjoint(file.location.parents)
        )
    collection.remove(gone)
    told.removed = sum(file.n_bytes > 0 for file in gone)
    failing: set[str] = set()
    with DocumentReader() as reader:
        for number, file in enumerate(found):
            if is_cancelled():
                told.is_complete = False
                break
            before = known.get((file.root, file.path))
            if before is not None and _is_same(before, file, failing):
                told.unchanged += 1
                if before.note:
                    told.left_out.append(before)
                continue
            on_progress(Progress(done=number, total=len(found), name=file.name))
            if (after := _take(collection, reader, file, before, failing)) is before:
                told.unchanged += 1
            elif after.n_bytes:
                told.read += 1
            if after.note:
                told.left_out.append(after)
    on_progress(Progress(done=len(found), total=len(found), name=""))
    return told


def is_away(root: Root) -> bool:
    """Return whether a folder or file is unavailable, for example on an unplugged drive.

    A missing file counts as deleted if its folder exists. An empty folder counts as unavailable if its device
    has changed, because it is then just the mount point of a drive that is not mounted.
    """
    path = Path(root.path)
    try:
        if root.is_file:
            if path.exists():
                return False
            path = path.parent
        else:
            with os.scandir(path) as entries:
                if any(entries):
                    return False
        return root.device not in ("", _device_of(path))
    except NotADirectoryError:  # a file has replaced the folder
        return False
    except OSError:
        return True


def _device_of(path: Path) -> str:
    return str(os.stat(path).st_dev)


def _is_same(before: File, file: File, failing: set[str]) -> bool:
    """Return whether a file can be skipped. One that could not be read before may be readable now.

    failing: the reasons why other files currently cannot be read.
    """
    if file.note:
        return before.note == file.note
    return bool(before.digest or before.note in failing) and not _differ(before, file)


def _differ(before: File, file: File) -> bool:
    return (before.size, before.changed) != (file.size, file.changed)


def _take(
    collection: Collection, reader: DocumentReader, file: File, before: File | None, failing: set[str]
) -> File:
    """Read a file into the collection; return it, or `before` if nothing has changed.

    If something other than the file itself prevents reading, the reason is added to `failing`.
    """
    if file.note:
        return _leave_out(collection, file, before, file.note)
    try:
        data = paths.read_bytes(file.location, MAX_FILE_BYTES)
        digest = hashlib.sha256(data).hexdigest()
        if before is not None and before.digest == digest:
            collection.touch(file)
            return before
        file = msgspec.structs.replace(file, digest=digest)
        extracted = reader.read(data, name=file.name)
    except OSError as error:
        return _leave_out(collection, file, before, f"cannot be read: {error.strerror}")
    except DocumentError as error:
        note = error.message.removeprefix(file.name).strip(" :.")
        # If the reader is lost twice on the same file, blame the file, since each attempt takes a long time.
        is_second = before is not None and not before.digest and not _differ(before, file)
        if isinstance(error, ReaderMissing) or (isinstance(error, ReaderLost) and not is_second):
            file = msgspec.structs.replace(file, digest="")
            failing.add(note)
        return _leave_out(collection, file, before, note)
    file = msgspec.structs.replace(
        file,
        unit=extracted.unit,
        starts=extracted.starts,
        n_bytes=len(extracted.text.encode()),
        note="is too long: its end is left out" if extracted.is_cut else "",
    )
    is_code = kind_of(file.location) == "code"
    collection.put(file, passages_of(extracted.text, is_code=is_code))
    return file


def _leave_out(collection: Collection, file: File, before: File | None, why: str) -> File:
    file = msgspec.structs.replace(file, note=why)
    if before is not None and msgspec.structs.replace(before, id=file.id) == file:
        return before
    collection.put(file)
    return file


class FilesBelow(msgspec.Struct, kw_only=True):
    """The files in a folder and its subfolders."""

    files: list[File] = msgspec.field(default_factory=list)
    """The documents; any that have a note must not be read."""
    others: OtherFiles = OtherFiles()
    unread: set[Path] = msgspec.field(default_factory=set)
    """Folders that were not fully checked."""
    is_complete: bool = True
    entries: int = 0
    """Number of entries checked: files of all kinds, and folders."""


def files_below(root: Path, *, most: int = MOST_FILES, seconds: float = _WALK_SECONDS) -> FilesBelow:
    """Return all files in a folder and its subfolders, or `root` itself if it is a file.

    most: the maximum number of entries. seconds: the time limit.
    """
    try:
        real = Path(os.path.realpath(root))  # the user's folder may be a symlink
        is_folder = root.is_dir()
        contents = walk(root, most=most, seconds=seconds) if is_folder else FolderContents([""])
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return FilesBelow()
        return FilesBelow(unread={root}, is_complete=False)
    below = FilesBelow(
        unread={root / path for path in contents.unread},
        is_complete=contents.is_complete,
        entries=len(contents.paths),
    )
    others = list[str]()
    for path in sorted(contents.paths):
        if path.endswith("/"):
            continue
        location = root / path
        if kind_of(location) is not None or is_secret(location):
            below.files += _document(root, path, real)
        elif is_folder or root.is_file():
            others.append(path)
    names = tuple(File(root=str(root), path=path, size=0, changed=0).name for path in others[:MOST_NAMES])
    below.others = OtherFiles(len(others), names)
    return below


def _document(root: Path, path: str, real: Path) -> Iterator[File]:
    """Yield the document at a path inside a folder, if it is a file.

    real: the folder, with symlinks resolved.
    """
    location, target = root / path, real / path
    if not is_text(str(location)):
        return
    note = ""
    try:
        facts = os.lstat(target)
        if stat.S_ISLNK(facts.st_mode):  # a symlink to a file: `walk` does not follow symlinks to folders
            target = Path(os.path.realpath(target, strict=True))
            facts = os.stat(target)
            note = "" if _is_shown(target, real) else _OUTSIDE
    except OSError:  # missing, or a loop of symlinks
        return
    if stat.S_ISREG(facts.st_mode):
        note = _SECRET if is_secret(location) or is_secret(target) else note
        yield File(root=str(root), path=path, size=facts.st_size, changed=facts.st_mtime_ns, note=note)


def _is_shown(path: Path, folder: Path) -> bool:
    """Return whether a path is inside a folder, with no hidden components in between."""
    return path.is_relative_to(folder) and not any(
        part.startswith(".") for part in path.relative_to(folder).parts
    )
