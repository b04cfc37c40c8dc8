"""`edgechat pull`: download and verify the files of a model that fit this machine.

With --json, one object is printed at the end:

    model, repo, commit, quant
    files             a list: name, bytes, sha256, path, here (whether it was already on this machine)
    draft             the same four keys and files of the draft model, or null
    dry_run           whether nothing was downloaded
    seconds           how long the download took
    received_bytes    bytes downloaded now
    resumed_bytes     bytes kept from an earlier download
    plan              as in `edgechat plan --json`; null without a network, or if the model does not fit
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

from edgechat.base.errors import DoesNotFit
from edgechat.base.text import escaped_json, flat, one_line
from edgechat.cli.output.layout import sheet, styled
from edgechat.cli.output.progress import DownloadProgress
from edgechat.cli.output.pull_report import as_object, of_local_file, result, shown
from edgechat.cli.output.status import StatusLine
from edgechat.models.hub.download import FetchedFile
from edgechat.models.request import parse_request
from edgechat.planner.ranking.download_choice import DownloadChoice
from edgechat.planner.ranking.pulling import LocalModelEntry, PullDecision, bring, decide
from edgechat.planner.request import FORMATS
from edgechat.settings import Backend


@dataclass(frozen=True, slots=True)
class PullOptions:
    """What the command line said."""

    model: str
    quant: str | None = None
    draft: str | None = None
    """None: as settings.toml says, else auto."""
    backend: Backend | None = None
    """None: what suits this machine best."""
    revision: str | None = None
    dry_run: bool = False
    force: bool = False
    json: bool = False


def run(options: PullOptions) -> int:
    """Run the command; return the exit code. Raises EdgechatError."""
    reads = FORMATS[options.backend] if options.backend else None
    want = parse_request(options.model, options.quant, options.revision, reads)
    status = StatusLine(sys.stderr)
    try:
        decided = decide(
            want,
            draft=options.draft,
            backend=options.backend,
            tell=status.show,
        )
    finally:
        status.clear()
    if isinstance(decided, LocalModelEntry):
        return _without_hub(decided, options)
    picked = decided.picked
    if picked is not None:
        if not options.json:
            print(sheet(shown(decided, picked), bold=styled(sys.stdout)), flush=True)
        if not decided.fits and not options.dry_run:
            _insist(picked, options)
    return _bring(decided, options)


def _without_hub(here: LocalModelEntry, options: PullOptions) -> int:
    """Say what is here of a model of the catalogue, of whose repository nothing is known."""
    if options.json:
        _print_json(of_local_file(here, options.dry_run))
    else:
        print(f"{one_line(here.path.name)} is already on this machine: {flat(str(here.path))}")
    return 0


def _insist(picked: DownloadChoice, options: PullOptions) -> None:
    """Go on with a model that does not fit only where someone wants it all the same. Raises DoesNotFit."""
    if options.force:
        return
    if sys.stdin.isatty() and sys.stdout.isatty() and not options.json:
        if input("It does not fit. Download it anyway? [y/N] ").strip().lower() in ("y", "yes"):
            return
        raise DoesNotFit("Nothing was downloaded.")
    instead = f"edgechat pull {picked.instead} would fit. " if picked.instead else ""
    raise DoesNotFit(picked.why_not, hint=f"{instead}To download it anyway: --force")


def _bring(decided: PullDecision, options: PullOptions) -> int:
    started = time.monotonic()
    fetched: tuple[tuple[FetchedFile, ...], ...] = ()
    if not options.dry_run:
        progress = DownloadProgress(decided.total)
        try:
            fetched = bring(decided, progress)
        except KeyboardInterrupt:
            progress.says(
                "Interrupted. The part that was downloaded is kept; to resume, run the same command again."
            )
            raise
        finally:
            progress.clear()
    seconds = time.monotonic() - started
    files = [one for part in fetched for one in part]
    if options.json:
        _print_json(as_object(decided, files, options.dry_run, seconds))
    else:
        print("\n".join(result(decided, files, options.dry_run, seconds)))
    return 0


def _print_json(found: dict[str, Any]) -> None:
    print(escaped_json(json.dumps(found, ensure_ascii=False)))
