"""`edgechat doctor`: problems on this machine, most serious first, each with a remedy.

With --json, one object is printed: `wrong` (the number of problems; if there are any, the exit code is 1) and
`findings`, a list of objects with weight ("broken", "slow", "tight" or "note"), what, why and fix.

`edgechat doctor --with ssh://HOST` inspects workers instead; with --json, it prints a list of objects with
worker, error and hint (both null if it can be used), edgechat, llama_cpp, ggml, cpu, sandbox, link (up and
down in bytes per second, round_trip in seconds), devices (name, description, total, free, bandwidth or null).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from edgechat.base.errors import WorkerRefused
from edgechat.base.text import figure, mebibytes
from edgechat.cli.declaring import command, option
from edgechat.cli.options import checked_workers
from edgechat.cli.terminal_io import StatusLine, print_json, sheet, styled

if TYPE_CHECKING:
    from edgechat.cli.findings import Finding
    from edgechat.device.remote.workers import Tunnel


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
    from edgechat.cli.findings import Weight, all_findings

    with StatusLine(sys.stderr) as status:
        status.show("inspecting this machine")
        findings = sorted(all_findings(), key=lambda finding: -finding.weight)
    wrong = sum(finding.weight > Weight.NOTE for finding in findings)
    if json:
        print_json({"wrong": wrong, "findings": [_object(finding) for finding in findings]})
    else:
        print(_as_text(findings, wrong))
    raise Exit(int(wrong > 0))


def _run_with(addresses: Sequence[str], *, json: bool) -> int:
    """Check the workers at these addresses; return the exit code, 1 if any of them cannot be used, else 0."""
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
    """Return a report on a worker, in the form that --json prints."""
    import msgspec

    from edgechat.device.remote.workers import LostWorker, connect

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
    """Return why a worker's llama.cpp does not match this machine's, and a hint; both are None if it does."""
    from edgechat.base.process.ask import ChildFailed
    from edgechat.native.accelerators.devices import read_inventory
    from edgechat.planner.machine import check_build

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
        f"{mebibytes(int(link['up']))}/s up, {mebibytes(int(link['down']))}/s down; a round trip of "
        f"{figure(1000 * link['round_trip'])} ms",
    )
    yield "Sandbox", report["sandbox"] or "none: the worker's system offers none"


def _object(finding: Finding) -> dict[str, str]:
    return {**asdict(finding), "weight": finding.weight.name.lower()}


def _as_text(findings: list[Finding], wrong: int) -> str:
    bold = styled(sys.stdout)
    summary = "1 problem found." if wrong == 1 else f"{wrong} problems found."
    blocks = [summary if wrong else "No problems found."]
    for finding in findings:
        label = "wrong" if finding.weight else "note"
        rows = [(label, finding.what), ("why", finding.why), ("do", finding.fix)]
        blocks.append(sheet([row for row in rows if row[1]], bold=bold, width=7))
    return "\n\n".join(blocks)
