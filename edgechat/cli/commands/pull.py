"""`edgechat pull`: download the files of a model that fit this machine, and verify them.

With --json, one object is printed at the end:

    model, repo, commit, quant
    files             a list: name, bytes, sha256, path, here (whether it was already on this machine)
    projector         the same for the file that lets the model see or hear, or null
    head              the same for the model's drafting layers (MTP), if they are in a separate file, or null
    draft             the same keys for the draft model, or null
    vision, audio     whether the model can see or hear with that projector; null if it was not examined
    no_vision         why the projector in the repository is not used, or null
    dry_run           whether the download was skipped
    seconds           how long the download took
    received_bytes    bytes downloaded this time
    resumed_bytes     bytes already there from an interrupted download
    plan              as in `edgechat plan --json`; null without a network, or if the model does not fit

For a LoRA adapter, prints the same object as `edgechat list --json`, with dry_run and received_bytes added.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click
import msgspec

from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound
from edgechat.base.text import flat, mebibytes, one_line
from edgechat.cli import completion
from edgechat.cli.declaring import argument, command, offline_option, option
from edgechat.cli.options import backend_option, no_vision_option
from edgechat.cli.terminal_io import StatusLine, answers_yes, is_interactive, print_json, sheet, styled
from edgechat.models.formats.header import senses

if TYPE_CHECKING:
    from edgechat.models.adapters.pulling import RemoteAdapter
    from edgechat.models.choices import RemoteFile
    from edgechat.models.hub.download import FetchedFile
    from edgechat.models.local.files import ModelPartFile
    from edgechat.models.request import ModelRequest
    from edgechat.planner.ranking.pulling import DownloadChoice, LocalModelEntry, PullDecision, PullPart


@command(
    "pull",
    epilog="If a download is interrupted, the same command resumes it. Files that are complete are not "
    "downloaded again.",
)
@argument(
    "model",
    metavar="MODEL",
    help="A name of the catalogue, owner/repo[:QUANT], or its URL.",
    complete=completion.catalogue_models,
)
@option("--quant", help="The quantization to download, such as Q5_K_M or 4bit.")
@option("--auto-quant", is_flag=True, help="Let the planner choose the quantization (the default).")
@option(
    "--draft",
    metavar="auto|none|mtp|MODEL",
    help="auto: download the catalogue's draft model too, if both fit together, it is much smaller, "
    "and the model does not draft by itself (mtp).",
    complete=completion.pulled_drafters,
)
@backend_option
@option("--revision", help="A branch, tag or commit.")
@no_vision_option
@option("--dry-run", is_flag=True, help="Show what would be downloaded, and stop.")
@option("--force", is_flag=True, help="Download the model even if it does not fit.")
@offline_option
@option("--json", is_flag=True, help="Print one JSON object at the end.")
def pull(
    model: str,
    quant: str | None,
    auto_quant: bool,
    draft: str | None,
    backend: Literal["llama.cpp", "mlx"] | None,
    revision: str | None,
    no_vision: bool,
    dry_run: bool,
    force: bool,
    json: bool,
) -> None:
    """Download a model in the best quantization for this machine, into the hub's cache."""
    from edgechat.models.adapters.pulling import remote_adapter
    from edgechat.models.request import parse_request
    from edgechat.planner.ranking.pulling import LocalModelEntry, decide
    from edgechat.planner.request import FORMATS

    if quant and auto_quant:
        raise click.BadParameter("cannot be used together with --auto-quant", param_hint="--quant")
    want = parse_request(model, quant, revision, FORMATS[backend] if backend else None)
    try:
        with StatusLine(sys.stderr) as status:
            decision = decide(want, draft=draft, backend=backend, vision=not no_vision, tell=status.show)
    except (ModelNotFound, ModelFileError):
        adapter = remote_adapter(want.hub, want.quant) if want.entry is None else None
        if adapter is None:
            raise
        _pull_adapter(adapter, want, dry_run=dry_run, json=json)
        return
    if isinstance(decision, LocalModelEntry):  # a local file from an unknown repository
        if json:
            print_json(_local_object(decision, dry_run))
        else:
            path = decision.path
            print(f"{one_line(path.name)} is already on this machine: {flat(str(path))}")
        return
    if decision.picked is not None:
        if not json:
            print(sheet(_shown(decision, decision.picked), bold=styled(sys.stdout)), flush=True)
        if not decision.fits and not dry_run and not force:
            _confirm(decision.picked, json=json)
    started = time.monotonic()
    files = [] if dry_run else _download(decision)
    seconds = time.monotonic() - started
    if json:
        print_json(_object(decision, files, dry_run, seconds))
    else:
        print("\n".join(_result(decision, files, dry_run, seconds)))


def _pull_adapter(remote: RemoteAdapter, want: ModelRequest, *, dry_run: bool, json: bool) -> None:
    """Download an adapter and print how to use it. Raises HubError or DiskError."""
    from edgechat.cli.commands.models import adapter_object
    from edgechat.models.adapters.local import AdapterDetails, LocalAdapter
    from edgechat.models.hub.cache import check_space
    from edgechat.models.hub.download import download

    missing = remote.missing
    size = sum(file.size for file in missing)
    if missing and not dry_run:
        check_space(size)
        progress = DownloadProgress(size)
        try:
            download(remote.listing, missing, want.revision, progress)
        finally:
            progress.clear()
    repo = remote.listing.repo
    adapter = LocalAdapter(repo, repo, remote.found)
    details = AdapterDetails() if dry_run else adapter.details()
    if json:
        received = 0 if dry_run else size
        print_json(adapter_object(adapter, details) | {"dry_run": dry_run, "received_bytes": received})
        return
    for_model = f" for {one_line(details.base)}" if details.base else ""
    what = "would be downloaded" if dry_run else "is on this machine"
    print(f"{one_line(repo)} is a LoRA adapter{for_model}; it {what}: {flat(str(adapter.path))}")
    print(f"To apply it: edgechat run MODEL --lora {repo}")


def _confirm(choice: DownloadChoice, *, json: bool) -> None:
    """Ask whether to download a model that does not fit. Raises DoesNotFit unless the user agrees."""
    if is_interactive() and not json:
        if answers_yes("It does not fit. Download it anyway?"):
            return
        raise DoesNotFit("Nothing was downloaded.")
    instead = f"edgechat pull {choice.instead} would fit. " if choice.instead else ""
    raise DoesNotFit(choice.why_not, hint=f"{instead}To download it anyway: --force")


def _download(decision: PullDecision) -> list[FetchedFile]:
    from edgechat.planner.ranking.pulling import bring

    progress = DownloadProgress(decision.total)
    try:
        return [file for part in bring(decision, progress) for file in part]
    except KeyboardInterrupt:
        progress.says(
            "Interrupted. The part that was downloaded is kept; to resume, run the same command again."
        )
        raise
    finally:
        progress.clear()


def _shown(decision: PullDecision, download: DownloadChoice) -> Iterator[tuple[str, str]]:
    """Yield (label, text) rows that show what was chosen and why."""
    from edgechat.planner.plan import LABELS, OWN_LAYERS

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


def _result(
    decision: PullDecision, fetched: Sequence[FetchedFile], dry_run: bool, seconds: float
) -> Iterator[str]:
    """Yield lines that state the outcome and suggest what to do next."""
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
            yield "It is used to search documents; `edgechat serve` provides it at /v1/embeddings."
            return
        if decision.kind == "reranking":
            yield (
                f'To search documents with it, too: reranking_model = "{name}" in settings.toml. '
                "`edgechat serve` provides it at /v1/rerank."
            )
            return
        argument = flat(shlex.quote(name)) if os.path.isabs(name) else name
        yield f"Chat with it: edgechat run {argument}"


def _folder(part: PullPart, missing: Sequence[RemoteFile], dry_run: bool) -> str:
    """Return one line that covers all the files of a model stored as a folder."""
    name, path = one_line(part.source.want.hub.repo), flat(str(part.model_path))
    if not missing:
        return f"{name} is already on this machine: {path}"
    size = mebibytes(sum(file.size for file in missing))
    n = f"{len(missing)} file{'s' * (len(missing) > 1)}"
    if dry_run:
        return f"would download {n} of {name}, {size}{_kept(part, missing)}"
    return f"downloaded {name}, {n}, {size}: {path}"


def _kept(part: PullPart, files: Sequence[RemoteFile]) -> str:
    """Return how much of the files is on disk from an earlier download, as text; '' if nothing."""
    n_bytes = sum(part.store.n_kept(file) for file in files)
    return f", {mebibytes(n_bytes)} here" if n_bytes else ""


def _object(
    decision: PullDecision, fetched: Sequence[FetchedFile], dry_run: bool, seconds: float
) -> dict[str, Any]:
    from edgechat.planner.plan import as_json

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


def _local_object(here: LocalModelEntry, dry_run: bool) -> dict[str, Any]:
    """Return the object to print with --json for a local file from an unknown repository."""
    from edgechat.models.local.stores import found_at

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


EVERY = 10.0
"""Seconds between progress lines if the output is not a terminal."""
_TERMINAL_INTERVAL = 0.2


class DownloadProgress:
    """A DownloadObserver that shows the combined progress of several files."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        from edgechat.models.hub.download import DownloadPace

        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()
        self._status = StatusLine(self._stream)
        self._pace = DownloadPace(total)
        self._shown = time.monotonic()

    def has(self, file: RemoteFile, n: int) -> None:
        """Record that the first n bytes of a file have been written to disk."""
        if self._pace.has(file, n):
            self._show(lambda: f"{self._pace.standing().line}, {_base(file.name)}")

    def checked(self, file: RemoteFile, n: int) -> None:
        """Show that the first n bytes of a partial download have been hashed again."""
        self._show(lambda: f"checking the partial download of {_base(file.name)}: {mebibytes(n)}")

    def says(self, text: str) -> None:
        """Print a sentence."""
        self._status.clear()
        print(flat(text), file=self._stream, flush=True)

    def clear(self) -> None:
        """Clear the progress line."""
        self._status.clear()

    def _show(self, text: Callable[[], str]) -> None:
        """Show a progress line, unless the last one was shown only a moment ago."""
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_INTERVAL if self._on else EVERY):
            return
        self._shown = now
        if self._on:
            self._status.show(text())
        else:
            print(text(), file=self._stream, flush=True)


def _base(name: str) -> str:
    return one_line(name.rpartition("/")[2], 40)
