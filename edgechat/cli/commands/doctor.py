"""`edgechat doctor`: problems on this machine, the most serious first, each with its remedy.

With --json, one object is printed: `wrong` (the number of problems; if there are any, the exit code is 1) and
`findings`, a list of weight ("broken", "slow", "tight" or "note"), what, why and fix. Each layer checks its
own files; this module collects the reports.

`edgechat doctor --with ssh://HOST` inspects workers instead; with --json it prints a list of worker, error
and hint (null for one that can be used), edgechat, llama_cpp, ggml, cpu, sandbox, link (up and down in bytes
per second, round_trip in seconds), devices (name, description, total, free, bandwidth or null).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
from click.exceptions import Exit

from edgechat import settings
from edgechat.base import paths
from edgechat.base.errors import EdgechatError, FolderError, WorkerRefused
from edgechat.base.process.ask import ChildFailed
from edgechat.base.text import figure, mebibytes, one_line
from edgechat.chat.storage.store import store_path
from edgechat.cli.commands.chats import with_store
from edgechat.cli.commands.device import models_folder
from edgechat.cli.declaring import command, option
from edgechat.cli.findings import Finding, Weight, machine_findings
from edgechat.cli.options import checked_workers
from edgechat.cli.terminal_io import StatusLine, print_json, sheet, styled
from edgechat.device.profile import disk_free
from edgechat.device.remote.workers import LostWorker, Tunnel, connect
from edgechat.device.survey import survey
from edgechat.models.catalogue import catalogue
from edgechat.models.formats.gguf import read_model
from edgechat.models.local.inventory import inventory
from edgechat.models.local.locations import hub_cache
from edgechat.models.local.resolve import resolve
from edgechat.models.remote.measured import engine_starts
from edgechat.native.accelerators.devices import read_inventory
from edgechat.planner.machine import check_build

_GUIDE = "guide"
_MOST_NOTES = 8


@command(
    "doctor",
    epilog="The exit code is 0 if no problems were found, 1 otherwise; notes do not count.",
    offline=True,
)
@option(
    "workers",
    "--with",
    multiple=True,
    metavar="ssh://[USER@]HOST",
    callback=checked_workers,
    help="Look at this worker instead: whether it can be used, and how fast it and its link "
    "are; can be repeated.",
)
@option("--json", is_flag=True, help="Print one JSON object.")
def doctor(workers: tuple[str, ...] | None, json: bool) -> None:
    """Look for problems on this machine, and say how to fix them."""
    if workers:
        raise Exit(_run_with(workers, json=json))
    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        findings = sorted(_findings(), key=lambda finding: -finding.weight)
    wrong = sum(finding.weight > Weight.NOTE for finding in findings)
    if json:
        print_json({"wrong": wrong, "findings": [_object(finding) for finding in findings]})
    else:
        print(_as_text(findings, wrong))
    raise Exit(int(wrong > 0))


def _run_with(addresses: Sequence[str], *, json: bool) -> int:
    """Check workers; return 1 if any cannot be used."""
    with StatusLine(sys.stderr) as status:
        status.show("connecting")
        reports = [_worker(address) for address in addresses]
    if json:
        print_json(reports)
    else:
        bold = styled(sys.stdout)
        print("\n\n".join(sheet(_worker_rows(report), bold=bold) for report in reports))
    return int(any(report["error"] for report in reports))


def _worker(address: str) -> dict[str, Any]:
    """Return a report on a worker, as --json prints it."""
    try:
        tunnel = connect(address)
        if isinstance(tunnel, LostWorker):
            raise WorkerRefused(tunnel.why)
    except WorkerRefused as error:
        return {"worker": address, "error": error.message, "hint": error.hint}
    wrong, hint = _unequal(tunnel)
    offer = tunnel.offer
    devices = [
        {
            "name": device.name,
            "description": device.description,
            "total": device.total,
            "free": free,
            "bandwidth": device.speed.bandwidth if device.speed is not None else None,
        }
        for device, free in zip(offer.devices, tunnel.free, strict=True)
    ]
    about = {name: getattr(offer, name) for name in ("edgechat", "llama_cpp", "ggml", "cpu", "sandbox")}
    link = msgspec.to_builtins(tunnel.link)
    return {"worker": address, "error": wrong, "hint": hint, **about, "link": link, "devices": devices}


def _unequal(tunnel: Tunnel) -> tuple[str | None, str | None]:
    """Return why a worker's llama.cpp does not match this machine's, and a hint; (None, None) if it does."""
    try:
        check_build(tunnel, read_inventory().build)
    except WorkerRefused as error:
        return error.message, error.hint
    except ChildFailed as error:
        return f"llama.cpp does not work here: its process {error}.", "Run: edgechat doctor"
    return None, None


def _worker_rows(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Worker", report["worker"]
    if report["error"]:
        yield "wrong", report["error"]
        yield "do", report["hint"] or ""
    if "link" not in report:
        return
    yield "llama.cpp", f"llama-cpp-python {report['llama_cpp']}, ggml {report['ggml']}"
    for device in report["devices"]:
        speed = f", {device['bandwidth'] / 1e9:.0f} GB/s" if device["bandwidth"] else ", speed not measured"
        memory = f"{mebibytes(device['total'])}, {mebibytes(device['free'])} free"
        yield device["name"], f"{device['description']}: {memory}{speed}"
    link = report["link"]
    yield (
        "Link",
        f"{mebibytes(int(link['up']))}/s there, {mebibytes(int(link['down']))}/s back; a round trip of "
        f"{figure(1000 * link['round_trip'])} ms",
    )
    yield "Sandbox", report["sandbox"] or "none: that system offers none"


def _findings() -> Iterator[Finding]:
    yield from own_findings()
    yield from machine_findings(survey(), _disks())


def own_findings() -> Iterator[Finding]:
    """Yield problems with edgechat's own folders and files."""
    yield from _folders()
    yield from _unreadable_folders()
    yield from _failed_starts()
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
            continue  # reported by `_folders`
        except EdgechatError as error:
            if error.message not in reported:
                yield Finding(Weight.BROKEN, error.message, why, error.hint or "")
            reported.add(error.message)


def _folders() -> Iterator[Finding]:
    """Yield a finding for each folder that is not writable; if one cannot be created, report only that."""
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
            return  # the others fail in the same way
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            grave = folder in (paths.data_dir, paths.log_dir)
            what = f"{path} is not writable: {error.strerror}."
            fix = f"Make it writable, or set EDGECHAT_HOME to another folder:\n  chmod u+rwx '{path}'"
            yield Finding(Weight.BROKEN if grave else Weight.NOTE, what, why, fix)


def _unreadable_folders() -> Iterator[Finding]:
    """Yield a note for each models folder that cannot be read."""
    try:
        skipped = inventory().skipped
    except EdgechatError:
        return  # reported by the catalogue check
    for path, reason in list(skipped.items())[:_MOST_NOTES]:
        what = f"The models in {one_line(str(path), 300)} cannot be read: {reason}."
        fix = "To use them, give your user permission to read the folder."
        yield Finding(Weight.NOTE, what, "`edgechat list` does not show them.", fix)


def _failed_starts() -> Iterator[Finding]:
    """Yield a note for each model whose engine failed at its last start."""
    for name, start in list(engine_starts().items())[-_MOST_NOTES:]:
        if start.failure:
            what = f"The program of {one_line(name, 300)} {one_line(start.failure, 300)}."
            yield Finding(Weight.NOTE, what, "That was its last start.", f"Read its log: {start.log}")


def _check_guide() -> None:
    read_model(resolve(_GUIDE).path)


def _check_model() -> None:
    """Check that the model named in settings.toml is on this machine."""
    try:
        model = settings.load().model
    except EdgechatError:
        return
    if model is not None and model != _GUIDE:
        read_model(resolve(model).path)


def _check_chats() -> None:
    if store_path().exists():
        with_store(lambda store: store.check(), only_read=True)


def _disks() -> dict[Path, int]:
    """Return the free bytes for each models folder, counting each disk once."""
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
