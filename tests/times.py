"""Where the tests spend their time: `make test-times`.

As a pytest plugin (`-p tests.times --times FILE`), it writes a line of JSON for each test: wall time, CPU
time including all child processes, and what the test started. As a program, it summarizes such a file:

    python -m tests.times build/test-times.jsonl
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_started: Counter[str] = Counter()
_KINDS = ("tmux", "edgechat", "engine", "dryrun")
"""A test's kind is the first of these that it starts; failing that, see `_kind`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FILE", help="append the time of each test to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if (file := config.getoption("--times")) and (hasattr(config, "workerinput") or not _distributed(config)):
        sys.addaudithook(_see)
        config.pluginmanager.register(_Times(Path(file)), "the times of tests")


def _distributed(config: pytest.Config) -> bool:
    return bool(getattr(config.option, "numprocesses", None))


class _Times:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._cpu = 0.0

    def _write(self, test: str, wall: float, **more: Any) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            row = {"test": test, "wall": round(wall, 4), "process": os.getpid(), "ended": time.time(), **more}
            file.write(json.dumps(row) + "\n")

    def pytest_collection_finish(self) -> None:
        self._cpu = processor_seconds()
        self._write("(imports and collection)", 0.0, cpu=self._cpu, kind="pytest", started={})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        _started.clear()
        cpu, before = processor_seconds(), time.perf_counter()
        outside, self._cpu = cpu - self._cpu, cpu
        result = yield
        wall, self._cpu = time.perf_counter() - before, processor_seconds()
        self._write(
            item.nodeid,
            wall,
            cpu=round(self._cpu - cpu, 4),
            outside=round(outside, 4),
            kind=_kind(item),
            started=dict(_started),
        )
        return result


def _see(event: str, arguments: Any) -> None:
    """Count each program started, by role, name or command."""
    if event != "subprocess.Popen":
        return
    words = (
        [os.fspath(word) for word in arguments[1]] if not isinstance(arguments[1], str) else [arguments[1]]
    )
    words = [word.decode() if isinstance(word, bytes) else word for word in words]
    if "--child" in words[:-1]:
        _started[words[words.index("--child") + 1]] += 1
    elif any(word.endswith(("edgechat.py", "edgechat")) for word in words[:4]):
        _started["edgechat"] += 1
    else:
        _started[Path(words[0]).name] += 1


def _kind(item: pytest.Item) -> str:
    for kind in _KINDS:
        if _started[kind]:
            return kind
    if _started:
        return "other child"
    if item.get_closest_marker("hypothesis") or hasattr(getattr(item, "obj", None), "hypothesis"):
        return "property"
    return "app" if "tests/tui/" in item.nodeid and inspect.iscoroutinefunction(item.obj) else "plain"


def processor_seconds() -> float:
    """Return the CPU seconds used by this process and all its descendants."""
    mine = os.times()
    total = mine.user + mine.system + mine.children_user + mine.children_system
    waiting = _children(os.getpid())
    while waiting:
        process = waiting.pop()
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        total += sum(map(int, fields[11:15])) / _TICKS
        waiting += _children(process)
    return total


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            found += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    except OSError:
        pass  # it has ended, or this is not Linux
    return found


def main(words: Sequence[str]) -> None:
    """Print the totals of a file by kind, folder and file, what was started, and the slowest tests."""
    rows = [json.loads(line) for line in Path(words[0]).read_text(encoding="utf-8").splitlines()]
    for row in rows:
        row["file"] = row["test"].partition("::")[0]
        row["folder"] = "/".join(row["file"].split("/")[:3][:-1]) or row["file"]
    tests = [row for row in rows if "::" in row["test"]]
    print(
        f"{len(tests)} tests: {sum(row['wall'] for row in tests) / 60:.1f} minutes of wall clock in all"
        f" processes, {sum(row['cpu'] + row.get('outside', 0) for row in rows) / 60:.1f} of processor;"
        f" between tests {sum(row.get('outside', 0) for row in rows) / 60:.1f}\n"
    )
    for name, limit in (("kind", 20), ("folder", 40), ("file", 40), ("test", 60)):
        print(f"{'cpu s':>8} {'wall s':>8} {'tests':>6}  by {name}")
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for row in rows:
            for at, value in enumerate((row["cpu"], row["wall"], 1)):
                sums[row[name]][at] += value
        for key, (cpu, wall, count) in sorted(sums.items(), key=lambda item: -max(item[1][:2]))[:limit]:
            print(f"{cpu:8.1f} {wall:8.1f} {count:6.0f}  {key}")
        print()
    started: Counter[str] = Counter()
    for row in rows:
        started.update(row["started"])
    print("started:", ", ".join(f"{name} {count}" for name, count in started.most_common()))


if __name__ == "__main__":
    main(sys.argv[1:])
