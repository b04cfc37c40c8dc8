"""What `edgechat pull` says of what it chose and of what is here then: to people, and to programs."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from edgechat import paths
from edgechat.errors import EdgechatError
from edgechat.models.choices import GgufChoice, RemoteFile
from edgechat.models.download import Fetched
from edgechat.models.hubstore import HubStore
from edgechat.models.library import resolve
from edgechat.models.wanted import Wanted
from edgechat.planner.pick import Picked, Source
from edgechat.planner.plan import as_json
from edgechat.text import mebibytes, one_line, printable


@dataclass(slots=True)
class Part:
    """A model to bring here: the one that was asked for, or its draft."""

    source: Source
    choice: GgufChoice
    fetched: list[Fetched] = field(default_factory=list)

    @property
    def store(self) -> HubStore:
        """The folder of its repository in the cache."""
        return HubStore(self.source.remote.listing)

    def path(self, file: RemoteFile) -> Path:
        """Return where a file is, or will be."""
        return _own_copy(self.source.want, file) or self.store.path(file)

    def missing(self) -> list[RemoteFile]:
        """Return the files that are not in their places."""
        own = [file for file in self.choice.files if _own_copy(self.source.want, file)]
        return [file for file in self.choice.files if file not in own and not self.store.is_here(file)]

    def needed(self) -> int:
        """Return the bytes that have to come."""
        left = (file for file in self.missing() if not self.store.has_bytes(file))
        return sum(file.size - self.store.kept(file) for file in left)


def _own_copy(want: Wanted, file: RemoteFile) -> Path | None:
    """Return the file in edgechat's own folder, where a model of the catalogue may have been put by hand."""
    path = paths.data_dir() / "models" / file.name.rpartition("/")[2]
    same = want.entry is not None and path.is_file() and path.stat().st_size == file.size
    return path if same else None


def shown(parts: Sequence[Part], picked: Picked, no_draft: str) -> Iterator[tuple[str, str]]:
    """Yield the choice and its reasons."""
    first = parts[0]
    listing, choice, made = first.source.remote.listing, first.choice, picked.plan
    yield "Machine", picked.machine
    name = first.source.want.name
    where = "" if name == listing.repo else f" from {listing.repo}"
    licence = f", licence {listing.licence}" if listing.licence else ""
    yield "Model", f"{name}{where}, at {listing.commit[:12]}{licence}"
    split = f" in {len(choice.files)} parts" if len(choice.files) > 1 else ""
    yield "Choice", f"{choice.quant or choice.name}, {mebibytes(choice.total_bytes)}{split}"
    if made is None:
        yield "But", picked.why_not
    else:
        for note in made.notes:
            yield "Note", note
        yield "Why", "\n".join(dict.fromkeys((*made.reasons[:2], made.reasons[-1])))
        for other in made.alternatives[:2]:
            yield "Or", f"{other.quant or other.model}: {other.why_not}"
    for part in parts[1:]:
        size = mebibytes(part.choice.total_bytes)
        yield "Draft", f"{part.source.want.name} {part.choice.quant or ''}, {size}: it fits beside"
    if no_draft:
        yield "Draft", f"None. {no_draft}"


def result(
    parts: Sequence[Part], missing: Sequence[list[RemoteFile]], dry_run: bool, seconds: float
) -> Iterator[str]:
    """Yield what is here now, and what to do with it. missing: the files of each part that were not."""
    for part, files in zip(parts, missing, strict=True):
        for file in part.choice.files:
            name, size = one_line(file.name), mebibytes(file.size)
            if file not in files:
                yield f"{name} is here already: {printable(str(part.path(file)))}"
            elif dry_run:
                kept = part.store.kept(file)
                yield f"would download {name}, {size}" + (f", {mebibytes(kept)} here" if kept else "")
            else:
                yield f"{name} is here, {size}: {printable(str(part.path(file)))}"
    received = sum(one.received for part in parts for one in part.fetched)
    if received:
        yield f"{mebibytes(received)} in {seconds:.0f} s; the SHA-256 is the hub's."
    if not dry_run:
        yield f"Chat with it: edgechat run {_typed(parts[0])}"


def _typed(part: Part) -> str:
    """Return what to type to run a model: its name in the catalogue or on the hub, else its path."""
    path, want = part.path(part.choice.files[0]), part.source.want
    for name in (want.name, f"{want.hub.repo}:{part.choice.quant}"):
        with contextlib.suppress(EdgechatError):
            if resolve(name).path.samefile(path):
                return name
    return printable(shlex.quote(str(path)))


def as_object(
    parts: Sequence[Part],
    missing: Sequence[list[RemoteFile]],
    picked: Picked | None,
    dry_run: bool,
    seconds: float,
) -> dict[str, Any]:
    """Return what programs get: see cli/pull.py."""
    made = picked.plan if picked else None
    if made and not dry_run:
        path = parts[0].path(parts[0].choice.files[0])
        made = msgspec.structs.replace(made, model_path=str(path))
    fetched = [one for part in parts for one in part.fetched]
    described = [_described(part, files) for part, files in zip(parts, missing, strict=True)]
    return described[0] | {
        "draft": described[1] if len(described) > 1 else None,
        "dry_run": dry_run,
        "seconds": round(seconds, 3),
        "received_bytes": sum(one.received for one in fetched),
        "resumed_bytes": sum(one.resumed for one in fetched),
        "plan": as_json(made) if made else None,
    }


def _described(part: Part, missing: Sequence[RemoteFile]) -> dict[str, Any]:
    listing = part.source.remote.listing
    return {
        "model": part.source.want.name,
        "repo": listing.repo,
        "commit": listing.commit,
        "quant": part.choice.quant,
        "files": [
            {
                "name": file.name,
                "bytes": file.size,
                "sha256": file.sha256,
                "path": str(part.path(file)),
                "here": file not in missing,
            }
            for file in part.choice.files
        ],
    }
