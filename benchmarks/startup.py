"""Startup times: short commands, the first word of an answer, the app's first frame.

    python -m benchmarks.startup [--rounds 15] [--program dist/edgechat-VERSION-OS-ARCH/edgechat]
    python -m benchmarks.startup --commands
    python -m benchmarks.startup --servers 3

Short commands take turns with `python -c pass` and are compared with it round by round: in wall time, and in
CPU time, which other programs affect less. With --commands, nothing else is measured. --program compares the
packaged program with the installed one, in turns. --servers compares a home folder whose mcp.json has that
many tool servers with an empty one. The first word is the guide's, timed from the start of the process to the
first byte of its answer; three edgechat processes are involved. The first frame is timed until the first
bytes that draw its text, in a 100 x 30 pseudo-terminal that does not respond to queries.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.keypress import INSTALLED, App


def compare_commands(rounds: int, home: Path, full: Path) -> None:
    """Print the times of short commands relative to `python -c pass`.

    full: a home folder with 200 models.
    """
    commands = {
        "python -c pass": ([sys.executable, "-c", "pass"], home),
        "edgechat --version": ([INSTALLED, "--version"], home),
        "edgechat --help": ([INSTALLED, "--help"], home),
        "edgechat chats": ([INSTALLED, "chats"], home),
        "edgechat list": ([INSTALLED, "list"], home),
        "edgechat list, 200 models": ([INSTALLED, "list"], full),
        "edgechat show guide": ([INSTALLED, "show", "guide"], home),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, (command, folder) in commands.items():
            found = _times(command, folder)
            if number:  # the first round warms up caches
                taken[name].append(found)
            else:
                print(f"{name}: {1000 * found[0]:.0f} ms for the first time")
    for name, all_found in taken.items():
        pairs = [
            [one / plain for one, plain in zip(found, base, strict=True)]
            for found, base in zip(all_found, taken["python -c pass"], strict=True)
        ]
        wall, processor = (statistics.median(ratios) for ratios in zip(*pairs, strict=True))
        print(
            f"{name}: median {1000 * statistics.median(wall for wall, _ in all_found):.0f} ms, "
            f"{wall:.1f} times `python -c pass` (processor time: {processor:.1f}), of {rounds}",
            flush=True,
        )


def _times(command: list[str | Path], home: Path) -> tuple[float, float]:
    """Return the wall time and CPU time that a command takes with its own home folder, in seconds."""
    import resource

    unset = ("EDGECHAT_HOME", "PYTHONDONTWRITEBYTECODE", "HF_HOME", "XDG_CACHE_HOME")
    variables = {name: value for name, value in os.environ.items() if name not in unset}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=variables | {"HOME": str(home)})
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_models(home: Path, count: int) -> None:
    """Put `count` small models into edgechat's folder."""
    from tests.kit.build import tiny

    folder = home / ".local" / "share" / "edgechat" / "models"
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support" / "edgechat" / "models"
    folder.mkdir(parents=True)
    for number in range(count):
        shutil.copyfile(tiny(), folder / f"model-{number:03}-Q4_K_M.gguf")


def version(program: Path) -> float:
    """Return how long `edgechat --version` takes, in seconds."""
    began = time.perf_counter()
    subprocess.run([program, "--version"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_word(program: Path) -> float:
    """Return the seconds until the guide starts to answer."""
    began = time.perf_counter()
    command = [program, "run", "guide", "What is edgechat?", "--no-store"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process:
        if not process.stdout.read(1):
            raise SystemExit(f"{program} says nothing.")
        return time.perf_counter() - began


def first_frame(program: Path, sign: str, size: tuple[int, int] = (30, 100)) -> float:
    """Return the seconds until the app has drawn `sign`."""
    began = time.perf_counter()
    app = App(None, size, program)
    try:
        app.until(sign, 60)
        return time.perf_counter() - began
    finally:
        app.close()


def write_servers(home: Path, count: int) -> None:
    """Write an mcp.json whose tool servers would create a file if they were started."""
    command = {"command": sys.executable, "args": ["-c", f"open({str(home / 'started')!r}, 'w')"]}
    (home / "config").mkdir()
    servers = {f"server{number}": command for number in range(count)}
    (home / "config" / "mcp.json").write_text(json.dumps({"mcpServers": servers}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sign", default="stays on this machine", help="text of the first frame")
    parser.add_argument("--program", type=Path, help="a packaged program to compare with")
    parser.add_argument("--commands", action="store_true", help="measure nothing else")
    parser.add_argument("--servers", type=int, default=0, help="tool servers to compare with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as full:
        write_models(Path(full), 200)
        compare_commands(options.rounds, Path(home), Path(full))
    if options.commands:
        return
    measures: dict[str, Callable[[Path], float]] = {
        "edgechat --version": version,
        "first word": first_word,
        "first frame": lambda program: first_frame(program, options.sign),
    }
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as other:
        variants = {"plain": (INSTALLED, home)}
        if options.program:
            variants["packaged"] = (options.program.resolve(), home)
        if options.servers:
            del measures["first word"]  # that chat has no tools
            write_servers(Path(other), options.servers)
            variants[f"{options.servers} tool servers"] = (INSTALLED, other)
        for name, measure in measures.items():
            seconds: dict[str, list[float]] = {variant: [] for variant in variants}
            for number in range(options.rounds + 1):
                for variant, (program, os.environ["EDGECHAT_HOME"]) in variants.items():
                    taken = measure(program)
                    if number:  # the first round warms up caches
                        seconds[variant].append(taken)
            for variant, found in seconds.items():
                pairs = zip(found, seconds["plain"], strict=True)
                ratio = statistics.median(one / plain for one, plain in pairs)
                print(
                    f"{name}, {variant}: median {1000 * statistics.median(found):.0f} ms, "
                    f"best {1000 * min(found):.0f}, worst {1000 * max(found):.0f} ms of {options.rounds}; "
                    f"of plain: {ratio:.3f} (median of rounds)",
                    flush=True,
                )
        if options.servers:
            print(f"tool servers were started: {(Path(other) / 'started').exists()}")


if __name__ == "__main__":
    main()
