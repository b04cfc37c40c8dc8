"""Downloads through hf-xet, for files that the hub serves only from its Xet storage.

huggingface_hub runs in a child process, which can be killed at any moment. A download that was killed has to
start over, since hf-xet cannot resume.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from edgechat.base.errors import HubError, HubUnreachable
from edgechat.base.process import frames, spawn
from edgechat.base.text import one_line
from edgechat.models.choices import RemoteFile, RepoListing
from edgechat.models.hub.endpoint import CHECK, host

_POLL_SECONDS = 0.2
_MAX_MESSAGE = 300
_BLOCK = 512


class XetRequest(msgspec.Struct, frozen=True):
    """A request to the child process: a file and the destination folder."""

    hub: str
    repo: str
    commit: str
    name: str
    folder: str


class XetAnswer(msgspec.Struct, frozen=True):
    """The child's response: the path of the file, or what went wrong."""

    path: str = ""
    error: str = ""
    disk_full: bool = False


def fetch(listing: RepoListing, file: RemoteFile, folder: Path, wait: Callable[[float, int], object]) -> Path:
    """Download a file into `folder`, which must be empty, and return its path. The file is not verified.

    wait: called with the number of seconds to wait and the number of bytes so far. If it raises an exception,
    the download ends. Raises HubError, and OSError if the disk is full.
    """
    import subprocess  # takes 18 ms, and `edgechat --version` does not need it

    name = one_line(file.name)
    if importlib.util.find_spec("hf_xet") is None:
        raise _missing(listing, name)
    request = XetRequest(listing.hub, listing.repo, listing.commit, file.name, str(folder))
    process: Any = None
    try:
        process = subprocess.Popen(spawn.command("xet"), **spawn.options(subprocess.DEVNULL))
        process.stdin.write(frames.pack(msgspec.msgpack.encode(request)))
        process.stdin.flush()
        while process.poll() is None:
            wait(_POLL_SECONDS, min(_bytes_on_disk(folder), file.size))
        answer = msgspec.msgpack.decode(frames.read(process.stdout) or b"", type=XetAnswer)
    except (OSError, frames.BrokenFrame, msgspec.DecodeError):
        answer = XetAnswer(error="its process failed")
    finally:
        if process is not None:
            process.kill()
            process.communicate()
    if answer.disk_full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if answer.error:
        why = one_line(answer.error, _MAX_MESSAGE)
        raise HubUnreachable(
            f"{name} could not be downloaded from {host(listing.hub)} through hf-xet: {why}", hint=CHECK
        )
    return Path(answer.path)


def _bytes_on_disk(folder: Path) -> int:
    """Return how many bytes the files in a folder occupy. hf-xet can write parts of a file concurrently."""
    total = 0
    for path in folder.rglob("*"):
        try:
            info = path.lstat()
        except OSError:  # renamed in the meantime
            continue
        blocks = getattr(info, "st_blocks", None)
        total += info.st_size if blocks is None else blocks * _BLOCK
    return total


def _missing(listing: RepoListing, name: str) -> HubError:
    hint = 'pip install "edgechat[xet]"'
    if spawn.frozen():
        hint = f"hf download {listing.repo} {name}  (from huggingface_hub; it shares its cache with edgechat)"
    return HubError(
        f"{host(listing.hub)} serves {name} only through hf-xet, which is not installed.", hint=hint
    )


def main() -> None:
    """Process one XetRequest, exiting if the parent process ends."""
    incoming, outgoing = spawn.adopt_pipe()
    data = frames.read(incoming)
    if data is None:
        return
    request = msgspec.msgpack.decode(data, type=XetRequest)
    threading.Thread(target=_end_with_parent, args=(incoming,), daemon=True).start()
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    from huggingface_hub import hf_hub_download

    try:
        # Do not download into the cache: the parent holds its lock, and only verified bytes belong there.
        path = hf_hub_download(
            request.repo,
            request.name,
            revision=request.commit,
            local_dir=request.folder,
            endpoint=request.hub,
            library_name="edgechat",
        )
        answer = XetAnswer(path=str(path))
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        answer = XetAnswer(error=f"{type(error).__name__}: {error}", disk_full=full)
    frames.write(outgoing, msgspec.msgpack.encode(answer))


def _end_with_parent(incoming: BinaryIO) -> None:
    incoming.read()
    os._exit(0)
