"""`edgechat doctor`: everything that is wrong here, the gravest first, each with its remedy.

With --json one object is printed: `wrong` (a number: the exit code is 1 if there are any) and `findings`, a
list of weight ("broken", "slow", "tight" or "note"), what, why and fix. Each layer judges its own files:
this only collects what they report.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import EdgechatError, FolderError
from edgechat.base.text import one_line
from edgechat.chat.storage.store import store_path
from edgechat.cli.commands.chats import with_store
from edgechat.cli.commands.device import models_folder
from edgechat.cli.output.findings import Finding, Weight, machine_findings
from edgechat.cli.output.layout import sheet, styled
from edgechat.cli.output.status import StatusLine
from edgechat.cli.terminal_io import print_json
from edgechat.device.profile import disk_free
from edgechat.device.survey import survey
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.gguf import read_model
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import hub_cache
from edgechat.models.local.resolve import resolve

_GUIDE = "guide"
_MOST_NOTES = 8


def run(*, json: bool) -> int:
    """Run the command; return the exit code."""
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        findings = sorted(_findings(), key=lambda finding: -finding.weight)
    wrong = sum(finding.weight > Weight.NOTE for finding in findings)
    if json:
        print_json({"wrong": wrong, "findings": [_object(finding) for finding in findings]})
    else:
        print(_as_text(findings, wrong))
    return int(wrong > 0)


def _findings() -> Iterator[Finding]:
    yield from own_findings()
    yield from machine_findings(survey(), _disks())


def own_findings() -> Iterator[Finding]:
    """Yield what is wrong with edgechat's own folders and files."""
    yield from _folders()
    yield from _unreadable_folders()
    reported: set[str] = set()
    for check, why in (
        (settings.load, "Commands fail, and the app opens without a model."),
        (catalogue, "Models cannot be found by name."),
        (_check_guide, "The guide is the model that needs no download."),
        (_check_model, "edgechat opens with this model."),
        (_check_chats, "Conversations cannot be read or stored."),
    ):
        try:
            check()
        except FolderError:
            continue  # `_folders` has reported it
        except EdgechatError as error:
            if error.message not in reported:
                yield Finding(Weight.BROKEN, error.message, why, error.hint or "")
            reported.add(error.message)


def _folders() -> Iterator[Finding]:
    """Yield a finding for each folder that cannot be made or written to; one is enough of a kind."""
    kinds: tuple[tuple[Callable[[], Path], str], ...] = (
        (paths.config_dir, "Settings are read from this folder."),
        (paths.data_dir, "Conversations and models are stored in this folder."),
        (paths.log_dir, "The engine process writes its log there, and does not start without it."),
        (paths.cache_dir, "Measurements are stored in this folder."),
    )
    for folder, why in kinds:
        try:
            path = folder()
        except FolderError as error:
            yield Finding(Weight.BROKEN, error.message, why, error.hint or "")
            return  # the others would say the same
        try:
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            grave = folder in (paths.data_dir, paths.log_dir)
            what = f"{path} is not writable: {error.strerror}."
            fix = f"Make it writable, or set EDGECHAT_HOME to another folder:\n  chmod u+rwx '{path}'"
            yield Finding(Weight.BROKEN if grave else Weight.NOTE, what, why, fix)


def _unreadable_folders() -> Iterator[Finding]:
    """Yield a note for each folder of models that may not be read."""
    try:
        skipped = inventory().skipped
    except EdgechatError:
        return  # reported of the catalogue already
    for path, reason in list(skipped.items())[:_MOST_NOTES]:
        what = f"The models in {one_line(str(path), 300)} cannot be read: {reason}."
        fix = "To use them, give your user permission to read the folder."
        yield Finding(Weight.NOTE, what, "`edgechat list` does not show them.", fix)


def _check_guide() -> None:
    read_model(resolve(_GUIDE).path)


def _check_model() -> None:
    """Check that the model that settings.toml names is here, if the settings can be read at all."""
    try:
        model = settings.load().model
    except EdgechatError:
        return
    if model is not None and model != _GUIDE:
        read_model(resolve(model).path)


def _check_chats() -> None:
    if store_path().exists():
        with_store(lambda store: store.check())


def _disks() -> dict[Path, int]:
    """Return the free bytes of the folders that models are kept in, each disk once."""
    free: dict[Path, int] = {}
    for folder in filter(None, (models_folder(), hub_cache())):
        n_bytes = disk_free(folder)
        if n_bytes is not None and n_bytes not in free.values():
            free[folder] = n_bytes
    return free


def _object(finding: Finding) -> dict[str, str]:
    return {**asdict(finding), "weight": finding.weight.name.lower()}


def _as_text(findings: list[Finding], wrong: int) -> str:
    bold = styled(sys.stdout)
    summary = "1 problem found." if wrong == 1 else f"{wrong} problems found."
    blocks = [summary if wrong else "No problems found."]
    for finding in findings:
        label = "note" if finding.weight == Weight.NOTE else "wrong"
        rows = [(label, finding.what), ("why", finding.why), ("do", finding.fix)]
        blocks.append(sheet([row for row in rows if row[1]], bold=bold, width=7))
    return "\n\n".join(blocks)
