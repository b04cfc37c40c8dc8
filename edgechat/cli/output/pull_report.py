"""What `edgechat pull` prints about its choice and its result, for people and for programs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from edgechat.base.text import flat, mebibytes, one_line
from edgechat.models.choices import RemoteFile
from edgechat.models.formats.modalities import senses
from edgechat.models.hub.download import FetchedFile
from edgechat.models.local.scan import ModelPartFile
from edgechat.models.local.stores import found_at
from edgechat.planner.plan import LABELS, OWN_LAYERS, as_json
from edgechat.planner.ranking.pulling import DownloadChoice, LocalModelEntry, PullDecision, PullPart


def shown(decision: PullDecision, download: DownloadChoice) -> Iterator[tuple[str, str]]:
    """Yield the choice and its reasons."""
    first = decision.parts[0]
    listing, choice, plan = first.source.remote.listing, first.choice, download.plan
    yield "Machine", download.machine
    name = first.source.want.name
    where = "" if name == listing.repo else f" from {listing.repo}"
    licence = f", licence {listing.licence}" if listing.licence else ""
    yield "Model", f"{name}{where}, at {listing.commit[:12]}{licence}"
    what = "files, for MLX" if choice.format == "mlx" else "parts"
    split = f" in {len(choice.files)} {what}" if len(choice.files) > 1 else ""
    yield "Choice", f"{choice.shown}, {mebibytes(choice.total_bytes)}{split}"
    if plan is None:
        yield "But", download.why_not
    else:
        for note in plan.notes:
            yield "Note", note
        yield "Why", "\n".join(dict.fromkeys((*plan.reasons[:2], plan.reasons[-1])))
        for other in plan.alternatives[:2]:
            by = f" for {LABELS[other.backend]}" if other.backend != plan.backend else ""
            yield "Or", f"{other.quant or other.model}{by}: {other.why_not}"
    if first.projector is not None:
        size = mebibytes(first.projector.size)
        yield "Projector", f"{first.projector.name}, {size}: with it the model {senses(download.modalities)}"
    if download.no_vision:
        yield "Projector", f"None. {download.no_vision}"
    for part in decision.parts[1:]:
        draft = f"{part.source.want.name} {part.choice.quant or ''}, {mebibytes(part.choice.total_bytes)}"
        yield "Draft", f"{draft}: fits together with the model"
    if plan is not None and plan.head is not None:
        where = f" {one_line(first.head.name)}, {mebibytes(first.head.size)}" if first.head else ""
        yield "Draft", f"{OWN_LAYERS}{':' * bool(where)}{where or ', in the same file'}"
    if decision.no_draft:
        yield "Draft", f"None. {decision.no_draft}"


def result(
    decision: PullDecision, fetched: Sequence[FetchedFile], dry_run: bool, seconds: float
) -> Iterator[str]:
    """Yield what is here now, and what to do with it."""
    for part, files in zip(decision.parts, decision.missing, strict=True):
        if part.choice.format == "mlx":
            yield _folder(part, files, dry_run)
            continue
        for file in part.files:
            name, size = one_line(file.name), mebibytes(file.size)
            if file not in files:
                yield f"{name} is already on this machine: {flat(str(part.path(file)))}"
            elif dry_run:
                yield f"would download {name}, {size}{_kept(part, [file])}"
            else:
                yield f"downloaded {name}, {size}: {flat(str(part.path(file)))}"
    received = sum(file.received for file in fetched)
    if received:
        is_folder = any(part.choice.format == "mlx" for part in decision.parts)
        verified = "all hashes match" if is_folder else "the SHA-256 matches"
        yield f"{mebibytes(received)} in {seconds:.0f} s; {verified}."
    if not dry_run:
        name = decision.parts[0].name
        if decision.kind == "embedding":
            yield "Documents are searched with it; `edgechat serve` has it at /v1/embeddings."
            return
        if decision.kind == "reranking":
            yield (
                f'To search documents with it, too: reranking_model = "{name}" in settings.toml. '
                "`edgechat serve` has it at /v1/rerank."
            )
            return
        argument = flat(shlex.quote(name)) if os.path.isabs(name) else name
        yield f"Chat with it: edgechat run {argument}"


def _folder(part: PullPart, missing: Sequence[RemoteFile], dry_run: bool) -> str:
    """Return what happened to a model that is a folder, in one line for its many files."""
    name, path = one_line(part.source.want.hub.repo), flat(str(part.model_path))
    if not missing:
        return f"{name} is already on this machine: {path}"
    size = mebibytes(sum(file.size for file in missing))
    n = f"{len(missing)} file{'s' * (len(missing) > 1)}"
    if dry_run:
        return f"would download {n} of {name}, {size}{_kept(part, missing)}"
    return f"downloaded {name}, {n}, {size}: {path}"


def _kept(part: PullPart, files: Sequence[RemoteFile]) -> str:
    """Return how much of the files an earlier download has left."""
    n_bytes = sum(part.store.n_kept(file) for file in files)
    return f", {mebibytes(n_bytes)} here" if n_bytes else ""


def as_object(
    decision: PullDecision, fetched: Sequence[FetchedFile], dry_run: bool, seconds: float
) -> dict[str, Any]:
    """Return the object that --json prints: see cli/commands/pull.py."""
    plan = decision.picked.plan if decision.picked else None
    first = decision.parts[0]
    if plan and not dry_run:
        projector = plan.projector
        if projector is not None and first.projector is not None:
            projector = msgspec.structs.replace(projector, path=str(first.path(first.projector)))
        draft = plan.draft
        if draft is not None and first.head is not None:
            draft = msgspec.structs.replace(draft, model_path=str(first.path(first.head)))
        path = str(first.model_path)
        plan = msgspec.structs.replace(plan, model_path=path, projector=projector, draft=draft)
    model, *drafts = map(_described, decision.parts, decision.missing)
    modalities = decision.picked.modalities if decision.picked else None
    return model | {
        "draft": drafts[0] if drafts else None,
        "vision": None if modalities is None else "vision" in modalities,
        "audio": None if modalities is None else "audio" in modalities,
        "no_vision": decision.no_vision or None,
        "dry_run": dry_run,
        "seconds": round(seconds, 3),
        "received_bytes": sum(file.received for file in fetched),
        "resumed_bytes": sum(file.resumed for file in fetched),
        "plan": as_json(plan) if plan else None,
    }


def of_local_file(here: LocalModelEntry, dry_run: bool) -> dict[str, Any]:
    """Return the same for a local file whose repository is not known."""
    model = found_at(here.path)
    projector, head = (model.projector, model.head) if model is not None else (None, None)
    return {
        "model": here.want.name,
        "repo": here.want.hub.repo,
        "commit": None,
        "quant": here.quant,
        "files": [_local_file(file) for file in (model.files if model is not None else ())],
        "projector": projector and _local_file(projector),
        "head": head and _local_file(head),
        "draft": None,
        "vision": None,
        "audio": None,
        "no_vision": None,
        "dry_run": dry_run,
        "seconds": 0,
        "received_bytes": 0,
        "resumed_bytes": 0,
        "plan": None,
    }


def _local_file(file: ModelPartFile) -> dict[str, Any]:
    return {"name": file.path.name, "bytes": file.size, "sha256": None, "path": str(file.path), "here": True}


def _described(part: PullPart, missing: Sequence[RemoteFile]) -> dict[str, Any]:
    listing = part.source.remote.listing

    def described(file: RemoteFile) -> dict[str, Any]:
        return {
            "name": file.name,
            "bytes": file.size,
            "sha256": file.sha256,
            "path": str(part.path(file)),
            "here": file not in missing,
        }

    return {
        "model": part.source.want.name,
        "repo": listing.repo,
        "commit": listing.commit,
        "quant": part.choice.quant,
        "files": [described(file) for file in part.choice.files],
        "projector": described(part.projector) if part.projector is not None else None,
        "head": described(part.head) if part.head is not None else None,
    }
