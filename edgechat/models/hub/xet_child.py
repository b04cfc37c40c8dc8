"""The child process that fetches a file with huggingface_hub; see `edgechat.models.hub.xet`."""

from __future__ import annotations

import errno
import os
import threading
from typing import BinaryIO

import msgspec

from edgechat.base.process import frames, spawn
from edgechat.models.hub.xet import XetAnswer, XetRequest


def main() -> None:
    """Answer one XetRequest; end when the parent is gone."""
    incoming, outgoing = spawn.adopt_pipe()
    data = frames.read(incoming)
    if data is None:
        return
    request = msgspec.msgpack.decode(data, type=XetRequest)
    threading.Thread(target=_end_with_parent, args=(incoming,), daemon=True).start()
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    from huggingface_hub import hf_hub_download

    try:
        # Not into the cache, whose lock the parent holds, and where unverified bytes have no place.
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
