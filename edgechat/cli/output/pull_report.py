"""What `edgechat pull` says of what it chose and of what is here then: to people, and to programs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from edgechat.base.text import flat, mebibytes, one_line
from edgechat.models.choices import RemoteFile
from edgechat.models.hub.download import FetchedFile
from edgechat.models.local.stores import found_at
from edgechat.planner.plan import LABELS, as_json
from edgechat.planner.ranking.download_choice import DownloadChoice
from edgechat.planner.ranking.pulling import LocalModelEntry, PullDecision, PullPart


def shown(decided: PullDecision, picked: DownloadChoice) -> Iterator[tuple[str, str]]:
    """Yield the choice and its reasons."""
    first = decided.parts[0]
    listing, choice, made = first.source.remote.listing, first.choice, picked.plan
    yield "Machine", picked.machine
    name = first.source.want.name
    where = "" if name == listing.repo else f" from {listing.repo}"
    licence = f", licence {listing.licence}" if listing.licence else ""
    yield "Model", f"{name}{where}, at {listing.commit[:12]}{licence}"
    what = "files, for MLX" if choice.format == "mlx" else "parts"
    split = f" in {len(choice.files)} {what}" if len(choice.files) > 1 else ""
    yield "Choice", f"{choice.shown}, {mebibytes(choice.total_bytes)}{split}"
    if made is None:
        yield "But", picked.why_not
    else:
        for note in made.notes:
            yield "Note", note
        yield "Why", "\n".join(dict.fromkeys((*made.reasons[:2], made.reasons[-1])))
        for other in made.alternatives[:2]:
            by = f" for {LABELS[other.backend]}" if other.backend != made.backend else ""
            yield "Or", f"{other.quant or other.model}{by}: {other.why_not}"
    for part in decided.parts[1:]:
        size = mebibytes(part.choice.total_bytes)
        yield (
            "Draft",
            f"{part.source.want.name} {part.choice.quant or ''}, {size}: fits together with the model",
        )
    if decided.no_draft:
        yield "Draft", f"None. {decided.no_draft}"


def result(
    decided: PullDecision, fetched: Sequence[FetchedFile], dry_run: bool, seconds: float
) -> Iterator[str]:
    """Yield what is here now, and what to do with it."""
    for part, files in zip(decided.parts, decided.missing, strict=True):
        if part.choice.format == "mlx":
            yield _folder(part, files, dry_run)
            continue
        for file in part.choice.files:
            name, size = one_line(file.name), mebibytes(file.size)
            if file not in files:
                yield f"{name} is already on this machine: {flat(str(part.path(file)))}"
            elif dry_run:
                kept = part.store.n_kept(file)
                yield f"would download {name}, {size}" + (f", {mebibytes(kept)} here" if kept else "")
            else:
                yield f"downloaded {name}, {size}: {flat(str(part.path(file)))}"
    received = sum(one.received for one in fetched)
    if received:
        yield f"{mebibytes(received)} in {seconds:.0f} s; {_checked(decided)}."
    if not dry_run:
        yield f"Chat with it: edgechat run {_typed(decided.parts[0])}"


def _folder(part: PullPart, missing: Sequence[RemoteFile], dry_run: bool) -> str:
    """Return what is here of a model that is a folder, whose many files nobody wants to read of."""
    name, path = one_line(part.source.want.hub.repo), flat(str(part.model_path))
    if not missing:
        return f"{name} is already on this machine: {path}"
    size = mebibytes(sum(file.size for file in missing))
    n = f"{len(missing)} file{'s' * (len(missing) > 1)}"
    if dry_run:
        kept = sum(part.store.n_kept(file) for file in missing)
        return f"would download {n} of {name}, {size}" + (f", {mebibytes(kept)} here" if kept else "")
    return f"downloaded {name}, {n}, {size}: {path}"


def _checked(decided: PullDecision) -> str:
    several = any(part.choice.format == "mlx" for part in decided.parts)
    return "all hashes match" if several else "the SHA-256 matches"


def _typed(part: PullPart) -> str:
    name = part.name
    return flat(shlex.quote(name)) if os.path.isabs(name) else name


def as_object(
    decided: PullDecision, fetched: Sequence[FetchedFile], dry_run: bool, seconds: float
) -> dict[str, Any]:
    """Return what programs get: see cli/pull.py."""
    made = decided.picked.plan if decided.picked else None
    first = decided.parts[0]
    if made and not dry_run:
        made = msgspec.structs.replace(made, model_path=str(first.model_path))
    described = [_described(part, files) for part, files in zip(decided.parts, decided.missing, strict=True)]
    return described[0] | {
        "draft": described[1] if len(described) > 1 else None,
        "dry_run": dry_run,
        "seconds": round(seconds, 3),
        "received_bytes": sum(one.received for one in fetched),
        "resumed_bytes": sum(one.resumed for one in fetched),
        "plan": as_json(made) if made else None,
    }


def of_local_file(here: LocalModelEntry, dry_run: bool) -> dict[str, Any]:
    """Return the same of a file that is here, while nothing is known of its repository."""
    found, want = found_at(here.path), here.want
    files = [
        {"name": one.path.name, "bytes": one.size, "sha256": None, "path": str(one.path), "here": True}
        for one in (found.files if found is not None else ())
    ]
    known = {"model": want.name, "repo": want.hub.repo, "commit": None, "quant": here.quant, "files": files}
    none = {"draft": None, "dry_run": dry_run, "seconds": 0, "received_bytes": 0}
    return known | none | {"resumed_bytes": 0, "plan": None}


def _described(part: PullPart, missing: Sequence[RemoteFile]) -> dict[str, Any]:
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
