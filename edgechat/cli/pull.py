"""`edgechat pull`: from a name to verified files that fit this machine; and what programs get of it.

With --json one object is printed at the end:

    model, repo, commit, quant
    files             a list: name, bytes, sha256, path, here (it was before)
    draft             the same four and files of the model that drafts for it, or null
    dry_run           whether nothing was downloaded
    seconds           of the download
    received_bytes    that came now
    resumed_bytes     that an earlier download had left
    plan              as `edgechat plan --json` has it; null without a network, and where it does not fit
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgechat import settings
from edgechat.cli.progress import Progress
from edgechat.cli.pulled import Part, as_object, result, shown
from edgechat.cli.sheet import sheet, styled
from edgechat.cli.status import StatusLine
from edgechat.errors import DoesNotFit, HubError, HubUnreachable, ModelNotFound, OfflineMode, RateLimited
from edgechat.models.choices import GgufChoice
from edgechat.models.download import download
from edgechat.models.hub import resolve_remote
from edgechat.models.hubstore import check_space
from edgechat.models.library import local_files
from edgechat.models.wanted import Wanted, matching, wanted
from edgechat.planner.drafting import AUTO, NGRAM, NONE
from edgechat.planner.pick import Picked, Source, pick
from edgechat.text import escaped_json, one_line, printable


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    model: str
    quant: str | None = None
    draft: str | None = None
    """None: as settings.toml says, else auto."""
    revision: str | None = None
    dry_run: bool = False
    force: bool = False
    offline: bool = False
    json: bool = False


def run(options: Options) -> int:
    """Run the command; return the exit code. Raises EdgechatError."""
    want = wanted(options.model, options.quant, options.revision)
    status = StatusLine(sys.stderr)
    said = settings.load()
    offline = options.offline or said.offline
    wish = options.draft or (said.draft if said.draft in (NONE, NGRAM) else AUTO)
    try:
        status.show(f"asking the hub for {want.hub.repo}")
        try:
            source = _source(want, offline)
        except (HubUnreachable, OfflineMode, RateLimited) as error:
            return _without_hub(want, error, options)
        if source.remote.unasked is not None:
            return _from_memory(source, source.remote.unasked, options)
        draft, no_draft = _draft(wish, want, offline)
        status.show("looking at this machine, and at the model's header")
        picked = pick(source, lambda one: _begun(source, one), draft, wish)
    finally:
        status.clear()
    parts = [Part(source, picked.choice)]
    if picked.draft is not None and draft is not None:
        parts.append(Part(draft, picked.draft))
    if not options.json:
        print(sheet(shown(parts, picked, picked.no_draft or no_draft), bold=styled(sys.stdout)), flush=True)
    if picked.plan is None and not options.dry_run:
        _insist(want, picked, options)
    return _bring(parts, picked, options)


def _source(want: Wanted, offline: bool) -> Source:
    remote = resolve_remote(want.hub, offline=offline)
    return Source(want, remote, matching(want, remote))


def _draft(wish: str, want: Wanted, offline: bool) -> tuple[Source | None, str]:
    """Return where the draft is that was asked for, or why there is none."""
    if wish in (NONE, NGRAM):
        return None, ""
    if wish != AUTO:
        return _source(wanted(wish), offline), ""
    if want.entry is None or want.entry.draft is None:
        return None, (want.entry.no_draft if want.entry else None) or ""
    try:
        return _source(wanted(want.entry.draft), offline), ""
    except (HubError, ModelNotFound) as error:
        return None, f"Its draft, {want.entry.draft}, cannot be had. {error.message}"


def _begun(source: Source, choice: GgufChoice) -> int:
    """Return 2 for a model that is here, 1 for one of which a part is, or 0."""
    part = Part(source, choice)
    if any(file.sha256 is None for file in choice.files):
        return 0
    return 2 if not part.needed() else 1 if part.needed() < choice.total_bytes else 0


def _without_hub(want: Wanted, why: HubError, options: Options) -> int:
    """Say what is here of a model of the catalogue, of whose repository nothing is known. Raises `why`."""
    found = local_files(want.entry) if want.entry else {}
    here = {label: path for label, path in found.items() if want.quant in (None, label)}
    if not here:
        raise why
    quant, path = next(iter(here.items()))
    if options.json:
        file = {
            "name": path.name,
            "bytes": path.stat().st_size,
            "sha256": None,
            "path": str(path),
            "here": True,
        }
        known = {"model": want.name, "repo": want.hub.repo, "commit": None, "quant": quant, "files": [file]}
        none = {"draft": None, "dry_run": options.dry_run, "seconds": 0, "received_bytes": 0}
        _print_json(known | none | {"resumed_bytes": 0, "plan": None})
    else:
        print(f"{one_line(path.name)} is here already: {printable(str(path))}")
    return 0


def _from_memory(source: Source, why: HubError, options: Options) -> int:
    """Say what is here of a repository that cannot be asked now. Raises `why` where something is missing."""
    here = [one for one in source.choices if not Part(source, one).missing()]
    if not here:
        raise why
    return _bring([Part(source, here[0])], None, options)


def _insist(want: Wanted, picked: Picked, options: Options) -> None:
    """Go on with a model that does not fit only where someone wants it all the same. Raises DoesNotFit."""
    if options.force:
        return
    if sys.stdin.isatty() and sys.stdout.isatty() and not options.json:
        if input("It does not fit. Download it all the same? [y/N] ").strip().lower() in ("y", "yes"):
            return
        raise DoesNotFit("Nothing was downloaded.")
    instead = f"edgechat pull {picked.instead} would fit. " if picked.instead else ""
    raise DoesNotFit(picked.why_not, hint=f"{instead}To download it all the same: --force")


def _bring(parts: Sequence[Part], picked: Picked | None, options: Options) -> int:
    started = time.monotonic()
    missing = [part.missing() for part in parts]
    if not options.dry_run:
        check_space(sum(part.needed() for part in parts))
        progress = Progress(sum(file.size for files in missing for file in files))
        try:
            for part, files in zip(parts, missing, strict=True):
                if files:
                    listing = part.source.remote.listing
                    part.fetched = download(listing, files, part.source.want.revision, progress)
        except KeyboardInterrupt:
            progress.says("Stopped. What has come is kept: the same command goes on from there.")
            raise
        finally:
            progress.clear()
    seconds = time.monotonic() - started
    if options.json:
        _print_json(as_object(parts, missing, picked, options.dry_run, seconds))
    else:
        print("\n".join(result(parts, missing, options.dry_run, seconds)))
    return 0


def _print_json(found: dict[str, Any]) -> None:
    print(escaped_json(json.dumps(found, ensure_ascii=False)))
