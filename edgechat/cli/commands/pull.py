"""`edgechat pull`: download and verify the files of a model that fit this machine.

With --json, one object is printed at the end:

    model, repo, commit, quant
    files             a list: name, bytes, sha256, path, here (whether it was already on this machine)
    projector         the same of the file that makes pictures or sound readable for the model, or null
    head              the same of the model's drafting layers (MTP) in a file of their own, or null
    draft             the same entries about the draft model, or null
    vision, audio     whether the model sees, or hears, with that projector; null if it was not examined
    no_vision         why the projector of the repository is not used, or null
    dry_run           whether nothing was downloaded
    seconds           how long the download took
    received_bytes    bytes downloaded now
    resumed_bytes     bytes kept from an earlier download
    plan              as in `edgechat plan --json`; null without a network, or if the model does not fit

Of a LoRA adapter, the object of `edgechat list --json`, with dry_run and received_bytes.
"""

from __future__ import annotations

import sys
import time

from edgechat.base.errors import DoesNotFit, ModelFileError, ModelNotFound
from edgechat.base.text import flat, one_line
from edgechat.cli.output.adapters import as_object as as_adapter
from edgechat.cli.output.layout import sheet, styled
from edgechat.cli.output.progress import DownloadProgress
from edgechat.cli.output.pull_report import as_object, of_local_file, result, shown
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import answers_yes, is_interactive, print_json
from edgechat.models.adapters.local import AdapterDetails, LocalAdapter
from edgechat.models.adapters.pulling import RemoteAdapter, remote_adapter
from edgechat.models.hub.cache_layout import check_space
from edgechat.models.hub.download import FetchedFile, download
from edgechat.models.local.inventory import LocalModel
from edgechat.models.request import ModelRequest, parse_request
from edgechat.planner.ranking.pulling import DownloadChoice, LocalModelEntry, PullDecision, bring, decide
from edgechat.planner.request import FORMATS
from edgechat.settings import Backend


def run(
    model: str,
    *,
    quant: str | None,
    draft: str | None,
    backend: Backend | None,
    revision: str | None,
    vision: bool,
    dry_run: bool,
    force: bool,
    json: bool,
) -> None:
    """Run the command. Raises EdgechatError.

    draft: None for what settings.toml says, else auto. backend: None for what suits this machine best.
    vision: its projector too.
    """
    want = parse_request(model, quant, revision, FORMATS[backend] if backend else None)
    try:
        with StatusLine(sys.stderr) as status:
            decision = decide(want, draft=draft, backend=backend, vision=vision, tell=status.show)
    except (ModelNotFound, ModelFileError):
        adapter = remote_adapter(want.hub, want.quant) if want.entry is None else None
        if adapter is None:
            raise
        _pull_adapter(adapter, want, dry_run=dry_run, json=json)
        return
    if isinstance(decision, LocalModelEntry):  # nothing is known of its repository
        if json:
            print_json(of_local_file(decision, dry_run))
        else:
            path = decision.path
            print(f"{one_line(path.name)} is already on this machine: {flat(str(path))}")
        return
    if decision.picked is not None:
        if not json:
            print(sheet(shown(decision, decision.picked), bold=styled(sys.stdout)), flush=True)
        if not decision.fits and not dry_run and not force:
            _confirm(decision.picked, json=json)
    started = time.monotonic()
    files = [] if dry_run else _download(decision)
    seconds = time.monotonic() - started
    if json:
        print_json(as_object(decision, files, dry_run, seconds))
    else:
        print("\n".join(result(decision, files, dry_run, seconds)))


def _pull_adapter(remote: RemoteAdapter, want: ModelRequest, *, dry_run: bool, json: bool) -> None:
    """Download an adapter, and say how to use it. Raises HubError, DiskError."""
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
    adapter = LocalAdapter(LocalModel(repo, repo, remote.found))
    details = AdapterDetails() if dry_run else adapter.details()
    if json:
        received = 0 if dry_run else size
        print_json(as_adapter(adapter, details) | {"dry_run": dry_run, "received_bytes": received})
        return
    for_model = f" for {one_line(details.base)}" if details.base else ""
    what = "would be downloaded" if dry_run else "is on this machine"
    print(f"{one_line(repo)} is a LoRA adapter{for_model}; it {what}: {flat(str(remote.path))}")
    print(f"To apply it: edgechat run MODEL --lora {repo}")


def _confirm(choice: DownloadChoice, *, json: bool) -> None:
    """Ask whether to download a model that does not fit. Raises DoesNotFit unless the answer is yes."""
    if is_interactive() and not json:
        if answers_yes("It does not fit. Download it anyway?"):
            return
        raise DoesNotFit("Nothing was downloaded.")
    instead = f"edgechat pull {choice.instead} would fit. " if choice.instead else ""
    raise DoesNotFit(choice.why_not, hint=f"{instead}To download it anyway: --force")


def _download(decision: PullDecision) -> list[FetchedFile]:
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
